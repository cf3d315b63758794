"""The table of formats and kinds, and the two ways through it."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workers.exports import hugging_face, lorax, medusa, specforge, speculators
from workers.exports.artifact import Artifact
from workers.exports.errors import ExchangeError, unsupported
from workers.exports.folder import check_names
from workers.exports.target import Target


@dataclass(frozen=True, slots=True)
class Format:
    """kinds: that can leave in it."""

    name: str
    kinds: tuple[str, ...]
    export: Callable[[Artifact, Target, Path], None]
    read: Callable[[Path, Target], Artifact]


_MODULES = (speculators, specforge, medusa, hugging_face, lorax)
FORMATS = {module.NAME: Format(module.NAME, module.KINDS, module.export, module.read) for module in _MODULES}


def formats_of(kind: str) -> tuple[str, ...]:
    """That a speculator of this kind can leave in."""
    return tuple(name for name, form in FORMATS.items() if kind in form.kinds)


def export_speculator(folder: Path, form: str, target: Target, out: Path) -> None:
    """Writes an artifact into the empty folder `out`, in another engine's form.

    Raises: ExchangeError: no such format, the format has no place for this speculator, or the artifact is damaged.
    """
    chosen, artifact = _format(form), Artifact.read(folder)
    if artifact.kind not in chosen.kinds:
        possible = ", ".join(formats_of(artifact.kind)) or "nothing"
        raise unsupported(f"{artifact.kind} can be exported as {possible}, not as {form}")
    artifact.check(target)
    chosen.export(artifact, target, out)


def import_speculator(folder: Path, form: str, target: Target, out: Path, *, provenance: dict[str, Any]) -> str:
    """Writes the artifact of a folder in another engine's form into the empty folder `out`. Returns: its kind.

    Raises: ExchangeError: no such format, or what the folder holds cannot be served with this model.
    """
    check_names(folder)
    artifact = _format(form).read(folder, target)
    artifact.check(target)
    artifact.write(out, {"imported_from": form, **provenance})
    return artifact.kind


def _format(name: str) -> Format:
    if name not in FORMATS:
        raise ExchangeError("format_unknown", f"format must be one of {', '.join(FORMATS)}, got {name!r:.40}")
    return FORMATS[name]
