"""Runs the processes of an organization's models as an operating-system user that only this organization has.

`SLIPSTREAM_ENGINE_UIDS=20000-29999` switches this on; the parent must then run as root. Each organization gets the
lowest free id of the range when its first process starts on this machine, and keeps it: `engine_users.json` in the data
folder records the ids. If no id of the range is free, an organization that has run no process on this machine for a day
loses its id; it gets another id when its next process starts. The group id equals the user id. The ids need no entries
in the machine's lists of users and groups.

What a process of an organization may reach in the data folder:
    models/ID, deployments/ID, work/JOB   read, if they belong to its organization; write its results into work/JOB
    engine_homes/UID                      its home, caches and temporary files, which no other user can read; it exists
                                          while a process uses it (`engine_homes.use_home`)
    everything else                       nothing
"""

import contextlib
import fcntl
import json
import os
import re
import secrets
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from django.core.exceptions import ImproperlyConfigured

from control.core.processes.in_use import locked_if_unused
from control.core.settings.config import Config

HOME_LOCKS = "engine_home_locks"
_SHARED = ("models", "deployments", "work", "engine_homes")  # other users may enter these folders, but not list them


# An id can be released when it has been unused for this long. Starting a process takes less: a start first reserves
# the id, then makes files readable, and creates the home at the end.
RELEASE_SECONDS = 24 * 3600.0


class NoFreeUser(Exception):
    """Every id of the range belongs to an organization, and none of them can be released."""


@dataclass(frozen=True, slots=True)
class EngineUser:
    uid: int
    home: Path

    def environment(self) -> dict[str, str]:
        """Returns environment variables that name the user's folders. They replace the parent's variables."""
        cache = str(self.home / "cache")
        return {
            "HOME": str(self.home),
            "TMPDIR": str(self.home / "tmp"),
            "XDG_CACHE_HOME": cache,
            "TRITON_CACHE_DIR": f"{cache}/triton",
        }


def uid_range(config: Config) -> range | None:
    """Returns the range of user ids; None if none is configured.

    Raises: ImproperlyConfigured: the range is invalid, or this process may not change the user of its children.
    """
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
    """Returns the organization's user. If the organization has no user id on this machine yet, assigns one.

    Returns None if no range is configured; the organization's processes then run as this process's user.
    Raises: NoFreeUser.
    """
    uids = uid_range(config)
    if uids is None:
        return None
    data_dir = config.data_dir.resolve()
    _close_to_other_users(data_dir)
    with os.fdopen(os.open(data_dir / "engine_users.json", os.O_RDWR | os.O_CREAT, 0o600), "r+") as record:
        fcntl.flock(record, fcntl.LOCK_EX)  # workers and the supervisor of this machine share the record
        uid = _recorded_uid(record, organization_id, uids, data_dir)
        user = EngineUser(uid, data_dir / "engine_homes" / str(uid))
        home_lock(user.home).touch()
    return user


def home_lock(home: Path) -> Path:
    """Returns the path of a home's lock file, which is locked while a process uses the home.

    The file's modification time is the time at which the user was last used.
    The lock files lie in a folder that engines cannot reach, so that no engine can block another organization's home.
    """
    return home.parent.with_name(HOME_LOCKS) / f"{home.name}.lock"


def make_readable(folder: Path, user: EngineUser | None) -> None:
    """Lets only root and this user read a folder that root has filled, or lets everybody read it if `user` is None."""
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
    """Lets the processes of the organization `owner_id` (None: of every organization) read a model.

    Does nothing for a folder outside of the data folder, whose permissions the operator sets. Raises: NoFreeUser.
    """
    if uid_range(config) is not None and folder.resolve().is_relative_to(config.data_dir.resolve() / "models"):
        make_readable(folder, None if owner_id is None else engine_user(config, owner_id))


def make_writable(folder: Path, user: EngineUser) -> None:
    """Makes the user the owner of a folder. Files that root has put there still belong to root."""
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
            with contextlib.suppress(FileNotFoundError):  # SQLite may have deleted one of its files
                path.chmod(path.stat().st_mode & 0o770)


def _recorded_uid(record: TextIO, organization_id: str, uids: range, data_dir: Path) -> int:
    """Returns the organization's user id. Writes a new id into the file `record`, whose lock the caller must hold."""
    recorded: dict[str, int] = json.loads(record.read() or "{}")
    if recorded.get(organization_id) in uids:
        return recorded[organization_id]
    taken = set(recorded.values())
    free = next((uid for uid in uids if uid not in taken), None)
    if free is None:
        idle = next((name for name, uid in recorded.items() if uid in uids and _is_released(data_dir, uid)), None)
        if idle is None:
            raise NoFreeUser(f"all {len(uids)} ids of SLIPSTREAM_ENGINE_UIDS belong to other organizations")
        free = recorded.pop(idle)
    record.seek(0)
    record.truncate()
    json.dump({**recorded, organization_id: free}, record)
    return free


def _is_released(data_dir: Path, uid: int) -> bool:
    """Returns whether no process has used the id for `RELEASE_SECONDS`. If so, its files become root's.

    Files outside of the data folder, which an engine may have made in /tmp, keep their owner.
    """
    home = data_dir / "engine_homes" / str(uid)
    with locked_if_unused(home_lock(home)) as is_unused:
        last_use = home_lock(home).stat().st_mtime
        if not is_unused or last_use > time.time() - RELEASE_SECONDS or _has_process(uid):
            return False
        with contextlib.suppress(FileNotFoundError):
            hidden = home.rename(home.with_name(f".{home.name}.{secrets.token_hex(4)}"))  # `engine_homes` deletes it
            _close(hidden)
        for name in ("models", "deployments", "work"):
            for path in (data_dir / name).iterdir():
                status = path.lstat()
                if uid in (status.st_uid, status.st_gid):
                    _close(path)
    return True


def _close(path: Path) -> None:
    os.chown(path, 0, 0, follow_symlinks=False)
    if not path.is_symlink():
        path.chmod(0o700)


def _has_process(uid: int) -> bool:
    for status in Path("/proc").glob("[0-9]*/status"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # the process has ended meanwhile
            uids = next(line.split()[1:] for line in status.read_text().splitlines() if line.startswith("Uid:"))
            if str(uid) in uids:
                return True
    return False
