"""Home folders of engine users (see `engine_users`). If all homes of a machine together exceed a limit, the least
recently used homes are deleted.

In the data folder:
    engine_homes/UID            a home
    engine_homes/.UID.*         a home that is being deleted
    engine_home_locks/UID.lock  locked while a process uses the home (`engine_users.home_lock`)

`du` measures homes and `rm` deletes them, because Python's own functions fail for very deeply nested folders.
"""

import os
import secrets
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import IO

from control.core.processes.engine_users import EngineUser, home_lock
from control.core.processes.in_use import locked_if_unused, open_in_use
from control.core.settings.config import Config

# The interval at which each machine measures its homes. A home can have many thousands of files.
MEASURE_SECONDS = 600.0
# Time limit of a wait for a home's lock. `engine_homes_limit` holds a lock only during one rename, but an engine that
# inherits a lock could hold it for ever.
MAX_WAIT_SECONDS = 5.0
# Time limit for measuring or deleting one home. An engine can make millions of files, and the caller has other tasks.
COMMAND_SECONDS = 60.0


def use_home(user: EngineUser) -> IO[bytes]:
    """Marks the user's home as used, and creates it if necessary.

    Returns: a file that keeps the home from being deleted while this process, or one that inherits it, has it open.
    Raises: TimeoutError: a process of this user has locked its home.
    """
    lock = open_in_use(home_lock(user.home), max_wait_seconds=MAX_WAIT_SECONDS)
    os.utime(lock.fileno())
    for folder in (user.home, user.home / "cache", user.home / "tmp"):
        if not folder.is_dir():
            folder.mkdir(mode=0o700, exist_ok=True)  # another process may make it now
        os.chown(folder, user.uid, user.uid, follow_symlinks=False)
    return lock


def engine_homes_limit(config: Config) -> None:
    """Deletes the least recently used homes that no process uses until the rest fits the limit.

    Does nothing if the homes of this machine were measured less than `MEASURE_SECONDS` ago.
    """
    homes = config.data_dir.resolve() / "engine_homes"
    if not homes.is_dir():
        return
    limiting = home_lock(homes / ".limit")
    is_first = not limiting.exists()
    with locked_if_unused(limiting) as is_mine:
        if not is_mine or (not is_first and limiting.stat().st_mtime > time.time() - MEASURE_SECONDS):
            return
        os.utime(limiting)
        for hidden in homes.glob(".*"):
            _remove(hidden)
        limit = config.max_engine_homes_bytes
        sizes = {home: _num_bytes(home, if_unknown=limit + 1) for home in homes.glob("[!.]*")}
        excess = sum(sizes.values()) - limit
        for home in sorted(sizes, key=_used_at):
            if excess > 0 and _delete_if_unused(home):
                excess -= sizes[home]


def _used_at(home: Path) -> float:
    """Returns the Unix time of the home's last use, which is now if a process is using the home."""
    lock = home_lock(home)
    with locked_if_unused(lock) as is_unused:
        if not is_unused:
            os.utime(lock)
    return lock.stat().st_mtime


def _delete_if_unused(home: Path) -> bool:
    lock = home_lock(home)
    with locked_if_unused(lock) as is_unused:
        if not is_unused:
            return False
        hidden = home.rename(home.with_name(f".{home.name}.{secrets.token_hex(4)}"))
    _remove(hidden)  # without the lock, because it can take long
    return True


def _num_bytes(home: Path, *, if_unknown: int) -> int:
    """Returns the disk space of a home; `if_unknown` if measuring exceeds the time limit."""
    try:
        # A file that disappears meanwhile makes du fail, but du still prints the correct sum of the other files.
        done = subprocess.run(["du", "-sk", "--", home], capture_output=True, text=True, timeout=COMMAND_SECONDS)
    except subprocess.TimeoutExpired:
        return if_unknown
    return 1024 * int(done.stdout.partition("\t")[0] or 0)


def _remove(folder: Path) -> None:
    with suppress(subprocess.TimeoutExpired):  # the next call of `engine_homes_limit` continues
        subprocess.run(["rm", "-rf", "--", folder], capture_output=True, timeout=COMMAND_SECONDS)
