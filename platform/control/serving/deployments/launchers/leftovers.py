"""Deletes files of this machine that no engine uses.

These are logs, copies of models and home folders, as far as they exceed their limits, and copies of speculators and
adapters that earlier releases made for deployments that no longer run.
"""

import secrets
import shutil
from collections.abc import Collection
from pathlib import Path

import structlog

from control.core.processes.engine_homes import engine_homes_limit
from control.core.processes.log_files import logs_limit
from control.core.settings.config import Config
from control.models.catalog.cache import model_copies_limit

log = structlog.get_logger(__name__)


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


def limit_files(config: Config) -> None:
    """Applies all limits on a machine on which no supervisor runs. Errors, such as a full disk, are logged."""
    for limit in (logs_limit, model_copies_limit, engine_homes_limit):
        try:
            limit(config)
        except OSError:
            log.exception("could not limit the files of this machine")
