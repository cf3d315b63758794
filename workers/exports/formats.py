"""The table of formats and kinds, and the two ways through it."""

from collections.abc import Callable, Mapping
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
_CHECKS = {medusa.NAME: medusa.check, lorax.NAME: lorax.check}  # where not all that a kind can be has a place


def formats_of(kind: str) -> tuple[str, ...]:
    """That a speculator of this kind can leave in."""
    return tuple(name for name, form in FORMATS.items() if kind in form.kinds)


def check_possible(kind: str, form: str, hyperparameters: Mapping[str, Any]) -> None:
    """Before there is a speculator: can what will be trained so leave in this format? Raises: ExchangeError: no."""
    _check_kind(kind, _format(form))
    if form in _CHECKS:
        _CHECKS[form](hyperparameters)


def export_speculator(folder: Path, form: str, target: Target, out: Path) -> None:
    """Writes an artifact into the empty folder `out`, in another engine's form.

    Raises: ExchangeError: no such format, the format has no place for this speculator, or the artifact is damaged.
    """
    chosen, artifact = _format(form), Artifact.read(folder)
    _check_kind(artifact.kind, chosen)
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


def _check_kind(kind: str, form: Format) -> None:
    """Raises: ExchangeError."""
    if kind not in form.kinds:
        raise unsupported(f"{kind} can be exported as {', '.join(formats_of(kind))}, not as {form.name}")


def _format(name: str) -> Format:
    if name not in FORMATS:
        raise ExchangeError("format_unknown", f"format must be one of {', '.join(FORMATS)}, got {name!r:.40}")
    return FORMATS[name]
