"""Deletes the copies of speculators and adapters of deployments that do not run. A restarted one copies them again."""

import secrets
import shutil
from collections.abc import Collection
from pathlib import Path

from control.core.settings.config import Config


def hide_unused(config: Config, used_ids: Collection[str]) -> list[Path]:
    """Hides the folders of all deployments but the used ones. Returns all hidden folders, also those hidden earlier.

    Only the supervisor may call this, between two stagings: a hidden folder is never used again.
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
