"""Deletes this machine's copies of the speculators and adapters of deployments that do not run.

A deployment that is started again copies its files again.
"""

import secrets
import shutil
from collections.abc import Collection
from pathlib import Path

from control.core.settings.config import Config


def hide_unused(config: Config, used_ids: Collection[str]) -> list[Path]:
    """Renames the folders of all deployments that are not in `used_ids`, so that another thread can delete them.

    Returns all renamed folders, also those that an earlier call has renamed. Only the supervisor may call this, and not
    while it copies files for one of these deployments, because a renamed folder is never used again.
    """
    root = config.data_dir / "deployments"
    unused = [folder for folder in root.glob("*") if folder.name not in used_ids]
    return [
        folder if folder.name.startswith(".") else folder.rename(root / f".{folder.name}.{secrets.token_hex(4)}")
        for folder in unused
    ]


def delete(folders: list[Path]) -> None:
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
