"""Runs the processes of an organization's models as an operating-system user that only this organization has.

`SLIPSTREAM_ENGINE_UIDS=20000-29999` switches this on; the parent must then run as root. Each organization gets the
lowest free id of the range when its first process starts on this machine, and keeps it: `engine_users.json` in the data
folder records the ids. The group id equals the user id, and no user or group of these ids needs to exist.

What such a process may reach in the data folder:
    models/ID, deployments/ID, work/JOB   read, if they belong to its organization; in work/JOB it writes its results
    engine_homes/UID                      its home, caches and temporary files, which no other user can read; it exists
                                          while a process uses it (`engine_homes.use_home`)
    everything else                       nothing
"""

import contextlib
import fcntl
import json
import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from django.core.exceptions import ImproperlyConfigured

from control.core.settings.config import Config

HOME_LOCKS = "engine_home_locks"
_SHARED = ("models", "deployments", "work", "engine_homes")  # may be passed through, but not listed


class NoFreeUser(Exception):
    """Every id of the range belongs to an organization."""


@dataclass(frozen=True, slots=True)
class EngineUser:
    uid: int
    home: Path

    def environment(self) -> dict[str, str]:
        """Variables that name the user's folders; they replace those of the parent."""
        cache = str(self.home / "cache")
        return {
            "HOME": str(self.home),
            "TMPDIR": str(self.home / "tmp"),
            "XDG_CACHE_HOME": cache,
            "TRITON_CACHE_DIR": f"{cache}/triton",
        }


def uid_range(config: Config) -> range | None:
    """Raises: ImproperlyConfigured: the range is invalid, or this process may not change the user of its children."""
    if not config.engine_uids:
        return None
    bounds = re.fullmatch(r"(\d+)-(\d+)", config.engine_uids)
    uids = range(int(bounds[1]), int(bounds[2]) + 1) if bounds else range(0)
    if not uids or uids[0] < 1000:
        raise ImproperlyConfigured(f"SLIPSTREAM_ENGINE_UIDS must be FIRST-LAST from 1000, got {config.engine_uids!r}")
    if sys.platform != "linux" or os.geteuid() != 0:
        raise ImproperlyConfigured("SLIPSTREAM_ENGINE_UIDS requires Linux, and that workers and supervisor run as root")
    return uids


def engine_user(config: Config, organization_id: str) -> EngineUser | None:
    """None: no range is configured, so processes run as this process's user. Raises: NoFreeUser."""
    uids = uid_range(config)
    if uids is None:
        return None
    data_dir = config.data_dir.resolve()
    _close_to_other_users(data_dir)
    with os.fdopen(os.open(data_dir / "engine_users.json", os.O_RDWR | os.O_CREAT, 0o600), "r+") as record:
        fcntl.flock(record, fcntl.LOCK_EX)  # workers and the supervisor of this machine share the record
        uid = _recorded_uid(record, organization_id, uids)
    return EngineUser(uid, data_dir / "engine_homes" / str(uid))


def make_readable(folder: Path, user: EngineUser | None) -> None:
    """Lets this user, and no other user but root, read a folder that root has filled; None: every user."""
    group, folder_mode, file_mode = (0, 0o755, 0o644) if user is None else (user.uid, 0o750, 0o640)
    for root, _, names in os.walk(folder):
        os.chown(root, 0, group)
        os.chmod(root, folder_mode)
        for name in names:
            path = Path(root, name)
            if not path.is_symlink():
                os.chown(path, 0, group)
                path.chmod(file_mode)


def make_model_readable(config: Config, folder: Path, *, owner_id: str | None) -> None:
    """Lets the processes of the model's owner read the model; None: those of every organization.

    Does nothing for a folder outside of the data folder: its operator sets the permissions. Raises: NoFreeUser.
    """
    if uid_range(config) is not None and folder.resolve().is_relative_to(config.data_dir.resolve() / "models"):
        make_readable(folder, None if owner_id is None else engine_user(config, owner_id))


def make_writable(folder: Path, user: EngineUser) -> None:
    """Lets the user write in a folder; files that root has put there still belong to root."""
    folder.mkdir(parents=True, exist_ok=True)
    os.chown(folder, user.uid, user.uid)
    folder.chmod(0o700)


def _close_to_other_users(data_dir: Path) -> None:
    data_dir.mkdir(parents=True, exist_ok=True)
    data_dir.chmod(0o711)
    (data_dir / HOME_LOCKS).mkdir(mode=0o700, exist_ok=True)
    for name in _SHARED:
        (data_dir / name).mkdir(exist_ok=True)
        (data_dir / name).chmod(0o711)
    for path in data_dir.iterdir():
        if path.name not in _SHARED and not path.is_symlink():
            with contextlib.suppress(FileNotFoundError):  # a file of SQLite's may be gone since it was listed
                path.chmod(path.stat().st_mode & 0o770)


def _recorded_uid(record: TextIO, organization_id: str, uids: range) -> int:
    """The organization's id; a new one is written into the record, whose lock the caller holds."""
    recorded: dict[str, int] = json.loads(record.read() or "{}")
    if recorded.get(organization_id) in uids:
        return recorded[organization_id]
    taken = set(recorded.values())
    free = next((uid for uid in uids if uid not in taken), None)
    if free is None:
        raise NoFreeUser(f"all {len(uids)} ids of SLIPSTREAM_ENGINE_UIDS belong to other organizations")
    record.seek(0)
    record.truncate()
    json.dump({**recorded, organization_id: free}, record)
    return free
