"""What an artifact was made from and by, beside the artifact: enough to make it again."""

import hashlib
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

_PACKAGES = ("torch", "transformers", "peft", "safetensors", "numpy")
_SOURCES = ("kernels", "engine", "workers")


def provenance(*, target_revision: str, data_sha256: str, command: dict[str, Any]) -> dict[str, Any]:
    """`command`: what the job was asked for, without paths of this machine."""
    return {
        "target_revision": target_revision,
        "data_sha256": data_sha256,
        "command": command,
        "code_sha256": _code_sha256(),
        "versions": {"python": platform.python_version()} | {name: _version(name) for name in _PACKAGES},
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _code_sha256() -> str:
    """Over the sources that decide the result: names the build also where there is no repository."""
    root = Path(__file__).resolve().parents[2]
    digest = hashlib.sha256()
    for folder in _SOURCES:
        for path in sorted((root / folder).rglob("*.py")):
            digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()
