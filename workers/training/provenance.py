"""The provenance of an artifact: the inputs and versions that are needed to train it again, and hashes of its files."""

from pathlib import Path
from typing import Any

from workers.build import build_identity
from workers.contracts import file_sha256, files_below, fingerprint


def provenance(
    *,
    target_revision: str,
    target_texts: dict[str, str],
    system_fingerprint: str,
    data_sha256: str,
    initial: Path | None,
    command: dict[str, Any],
    folder: Path,
) -> dict[str, Any]:
    """Returns the contents of provenance.json.

    Args:
        target_texts: the result of `engine.target_texts.target_texts`.
        system_fingerprint: the target's fingerprint; see engine/fingerprint.py.
        initial: folder of the speculator from which training continued; None for a new speculator.
        command: the parameters of the job, without local paths.
        folder: the artifact's folder, without provenance.json.
    """
    return {
        "target_revision": target_revision,
        **target_texts,
        "system_fingerprint": system_fingerprint,
        "data_sha256": data_sha256,
        "initial_sha256": None if initial is None else fingerprint(initial, files_below(initial)),
        "command": command,
        **build_identity(),
        "files": {path.relative_to(folder).as_posix(): file_sha256(path) for path in files_below(folder)},
    }
