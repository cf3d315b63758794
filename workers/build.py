"""Identifies the build that made a result: commit, sources, packages. Standard library only."""

import hashlib
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

_PACKAGES = ("torch", "transformers", "peft", "safetensors", "numpy")
_SOURCES = {"kernels": ("*.py", "*.c", "*.h"), "engine": ("*.py",), "workers": ("*.py",)}
_ROOT = Path(__file__).resolve().parents[1]
_GIT_SECONDS = 10


def build_identity() -> dict[str, Any]:
    """Returns the identity as JSON. `commit` is None if there is no git repository; `code_sha256` also covers
    uncommitted changes."""
    return {
        "commit": _commit(),
        "code_sha256": _code_sha256(),
        "versions": {"python": platform.python_version()} | {name: _version(name) for name in _PACKAGES},
    }


def _commit() -> str | None:
    if not (_ROOT / ".git").exists():  # git would use the repository of a parent folder
        return None
    try:
        result = subprocess.run(
            ["git", "rev-parse", "HEAD"], cwd=_ROOT, capture_output=True, text=True, check=True, timeout=_GIT_SECONDS
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return result.stdout.strip()


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _code_sha256() -> str:
    """Returns the SHA-256 over the names and contents of the files in `_SOURCES`, which determine the results of
    jobs."""
    digest = hashlib.sha256()
    for folder, patterns in _SOURCES.items():
        paths = {path for pattern in patterns for path in (_ROOT / folder).rglob(pattern)}
        for path in sorted(paths):
            digest.update(path.relative_to(_ROOT).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()
