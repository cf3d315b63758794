"""What an artifact was made from and by, beside the artifact: enough to make it again."""

from pathlib import Path
from typing import Any

from workers.build import build_identity, file_sha256
from workers.contracts import files_below, fingerprint


def provenance(
    *, target_revision: str, data_sha256: str, initial: Path | None, command: dict[str, Any], folder: Path
) -> dict[str, Any]:
    """
    Args:
        initial: folder of the speculator that training went on from.
        command: what the job was asked for, without paths of this machine.
        folder: with the artifact's own files, all of which are named with their hashes.
    """
    return {
        "target_revision": target_revision,
        "data_sha256": data_sha256,
        "initial_sha256": None if initial is None else fingerprint(initial, files_below(initial)),
        "command": command,
        **build_identity(),
        "files": {path.relative_to(folder).as_posix(): file_sha256(path) for path in files_below(folder)},
    }
