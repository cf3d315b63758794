"""Manages this machine's copies of speculators and adapters. Each is fetched once, however many engines use it.

A copy never changes, because a speculator or adapter that is made anew has another id.
"""

import shutil
from pathlib import Path

from control.core.settings.config import get_config
from control.core.storage.backends import StorageError, get_storage
from control.models.catalog.cache import (
    complete_copy,
    copy_folder,
    model_copies_limit,
    only_fetcher,
    partial_folder,
    use_copy,
)
from control.models.catalog.folder import UnusableModel, check_safetensors


class DamagedArtifact(StorageError):
    """The files that were fetched are not those that storage lists, or their weights are damaged."""


def artifact_folder(artifact_id: str, prefix: str) -> Path:
    """Returns the copy of the speculator or adapter with this id. Fetches it from storage if necessary.

    Raises: StorageError, ClientError, BotoCoreError, OSError.
    """
    copy = copy_folder(get_config(), artifact_id)
    with use_copy(copy):
        if not copy.is_dir():
            with only_fetcher(copy) as is_missing:
                if is_missing:
                    _fetch(prefix, copy)
    return copy


def _fetch(prefix: str, copy: Path) -> None:
    partial = partial_folder(copy)
    try:
        sizes = get_storage().sizes(prefix)
        model_copies_limit(get_config(), reserved_bytes=sum(sizes.values()))
        get_storage().get_folder(prefix, partial)
        _check(partial, sizes)
        complete_copy(partial, copy)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _check(folder: Path, sizes: dict[str, int]) -> None:
    """Raises: DamagedArtifact."""
    found = {path.relative_to(folder).as_posix(): path.stat().st_size for path in folder.rglob("*") if path.is_file()}
    if found != sizes:
        raise DamagedArtifact(f"storage lists {sizes}, but the fetched files are {found}")
    try:
        for path in folder.rglob("*.safetensors"):
            check_safetensors(path)
    except UnusableModel as error:
        raise DamagedArtifact(error.message) from error
