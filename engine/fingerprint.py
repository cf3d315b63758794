"""The `system_fingerprint` of an engine: digests of everything that determines an answer's tokens, except the request.

    fp1.WEIGHTS.TOKENIZER.TEMPLATE.BUILD.DEVICE.DTYPE.FORMAT.SAMPLING.ADAPTER

Two engines with equal fingerprints give equal answers, bit for bit, so each of them can audit the other's answers
(engine/audit). The parts are separate, so that an error message can name the parts that differ. There is no part for
the drafter, because a drafter does not change an answer.
"""

import functools
import hashlib
import json
import re
from dataclasses import dataclass, fields, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from engine.digests import weights_sha256
from engine.models.base import Model
from engine.models.quantized.report import report_weights
from kernels.cpu.library import library, processor, uses_amx
from workers.contracts import file_sha256
from workers.model_folders import chat_template_sha256, tokenizer_sha256

FORMAT = "fp1"
# version of the noise, the filters and their order; increase it whenever a change makes answers differ
SAMPLING_VERSION = 1
NO_ADAPTER = "none"
_DIGITS = 16  # digits of each SHA-256; they suffice to tell engines apart, and certificates have the whole digests
_PACKAGES = ("torch", "triton", "numpy", "transformers", "tokenizers", "xgrammar", "jinja2")
_SOURCES = (("kernels", "*.py"), ("kernels", "*.c"), ("kernels", "*.h"), ("engine", "*.py"))
_ROOT = Path(__file__).resolve().parents[1]
_PART = re.compile(r"[A-Za-z0-9_-]{1,80}")


class UnknownFingerprint(ValueError):
    """The text is no fingerprint of a format that this release knows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fingerprint:
    """The parts in the order of the text; values have letters, digits, _ and - only."""

    weights: str  # config.json and safetensors
    tokenizer: str
    template: str  # chat templates
    build: str  # sources, versions of the packages that compute answers, machine code of the CPU kernels
    device: str  # type of the device, and a digest of its model and abilities
    dtype: str
    format: str  # format of the weights in matrix products, such as int8
    sampling: str  # version of the sampling, and a digest of the defaults in generation_config.json
    adapter: str = NO_ADAPTER  # the LoRA adapter

    def __str__(self) -> str:
        return ".".join((FORMAT, *(getattr(self, name) for name in PARTS)))

    @classmethod
    def parse(cls, text: str) -> "Fingerprint":
        """Raises: UnknownFingerprint."""
        name, *values = text.split(".")
        if name != FORMAT or len(values) != len(PARTS) or not all(_PART.fullmatch(value) for value in values):
            raise UnknownFingerprint(f"a fingerprint must be {FORMAT} and {len(PARTS)} parts, got {text[:200]!r}")
        return cls(**dict(zip(PARTS, values, strict=True)))

    def with_adapter(self, sha256: str | None) -> "Fingerprint":
        return replace(self, adapter=NO_ADAPTER if sha256 is None else sha256[:_DIGITS])


PARTS = tuple(field.name for field in fields(Fingerprint))


def fingerprint_of(model_dir: Path, model: Model) -> Fingerprint:
    """Reads the weights once, unless their digest is in the user's cache (engine/digests.py)."""
    return Fingerprint(
        weights=weights_sha256(model_dir)[:_DIGITS],
        tokenizer=tokenizer_sha256(model_dir)[:_DIGITS],
        template=chat_template_sha256(model_dir)[:_DIGITS],
        build=_build(),
        device=f"{model.device.type}-{_digest(_device(model.device))}",
        dtype=str(model.dtype).removeprefix("torch."),
        format=re.sub(r"[^A-Za-z0-9_]+", "-", report_weights(model_dir, model).kernel)[:80].strip("-"),
        sampling=f"{SAMPLING_VERSION}-{_defaults(model_dir)}",
    )


@functools.cache
def _build() -> str:
    kernels = library()
    machine_code = None if kernels is None else file_sha256(Path(kernels._name))
    digest = hashlib.sha256(repr((machine_code, *map(_version, _PACKAGES))).encode())
    paths = [path for folder, pattern in _SOURCES for path in (_ROOT / folder).rglob(pattern)]
    for path in sorted(paths):
        digest.update(path.relative_to(_ROOT).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:_DIGITS]


def _device(device: torch.device) -> str:
    if device.type == "cuda":
        return f"{torch.cuda.get_device_name(device)}, CUDA {torch.version.cuda}"
    return f"{processor()}, {torch.backends.cpu.get_cpu_capability()}{', AMX' if uses_amx() else ''}"


def _defaults(model_dir: Path) -> str:
    path = model_dir / "generation_config.json"
    return _digest(json.dumps(json.loads(path.read_bytes()), sort_keys=True) if path.is_file() else "")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
