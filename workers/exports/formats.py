"""The formats of other engines: the kinds of speculators that each supports, and the export to and import from each."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workers.exports import hugging_face, lorax, medusa, specforge, speculators
from workers.exports.artifact import Artifact
from workers.exports.errors import ExchangeError, unsupported
from workers.exports.folder import check_folder
from workers.exports.target import Target


@dataclass(frozen=True, slots=True)
class Format:
    """A format of another engine.

    kinds: the kinds of speculators that the format supports.
    export: writes an artifact into a folder, in this format.
    read: reads a folder in this format, and returns it as an artifact.
    """

    name: str
    kinds: tuple[str, ...]
    export: Callable[[Artifact, Target, Path], None]
    read: Callable[[Path, Target], Artifact]


_MODULES = (speculators, specforge, medusa, hugging_face, lorax)
FORMATS = {module.NAME: Format(module.NAME, module.KINDS, module.export, module.read) for module in _MODULES}
# Some formats do not support all hyperparameters of a kind. These functions check them before training.
_CHECKS = {medusa.NAME: medusa.check, lorax.NAME: lorax.check}


def formats_of(kind: str) -> tuple[str, ...]:
    """Returns the names of the formats that support this kind of speculator."""
    return tuple(name for name, form in FORMATS.items() if kind in form.kinds)


def check_exportable(kind: str, form: str, hyperparameters: Mapping[str, Any]) -> None:
    """Checks before training that the speculator can be exported to the format. Raises: ExchangeError."""
    _check_kind(kind, _format(form))
    if form in _CHECKS:
        _CHECKS[form](hyperparameters)


def export_speculator(folder: Path, form: str, target: Target, out: Path) -> None:
    """Reads the artifact in `folder` and writes it into the empty folder `out`, in another engine's format.

    Raises: ExchangeError: there is no such format, it does not support this speculator, or the artifact is damaged.
    """
    output_format, artifact = _format(form), Artifact.read(folder)
    _check_kind(artifact.kind, output_format)
    artifact.check(target)
    output_format.export(artifact, target, out)


def import_speculator(folder: Path, form: str, target: Target, out: Path, *, provenance: dict[str, Any]) -> str:
    """Converts `folder`, which is in another engine's format, to an artifact in the empty folder `out`.

    Returns: the kind of the speculator.

    Raises: ExchangeError: there is no such format, the folder is not in it, or the speculator does not fit the target.
    """
    check_folder(folder)
    artifact = _format(form).read(folder, target)
    artifact.check(target)
    artifact.write(out, {"imported_from": form, **provenance})
    return artifact.kind


def _check_kind(kind: str, form: Format) -> None:
    """Raises: ExchangeError."""
    if kind not in form.kinds:
        possible = ", ".join(formats_of(kind)) or "nothing"
        raise unsupported(f"{kind} can be exported as {possible}, not as {form.name}")


def _format(name: str) -> Format:
    if name not in FORMATS:
        raise ExchangeError("format_unknown", f"format must be one of {', '.join(FORMATS)}, got {name!r:.40}")
    return FORMATS[name]
