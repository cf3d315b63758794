"""The default settings, for one machine and one command: SQLite, a storage folder and a generated secret key."""

import os
import secrets
from pathlib import Path

import structlog

from control.core.settings.base import *  # noqa: F403
from control.core.settings.base import SLIPSTREAM, logging_settings


def _stored_secret_key(path: Path) -> str:
    """Reads the key, or creates it. If two processes start at the same time, both use the key that was stored first."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{os.getpid()}")
    temporary.touch(mode=0o600)
    temporary.write_text(secrets.token_urlsafe(48))
    try:
        os.link(temporary, path)  # fails if path exists; a reader never sees half a key
    except FileExistsError:
        pass  # created by an earlier or a simultaneous start
    finally:
        temporary.unlink()
    return path.read_text()


SECRET_KEY = (
    SLIPSTREAM.secret_key.get_secret_value()
    if SLIPSTREAM.secret_key
    else _stored_secret_key(SLIPSTREAM.data_dir / "secret_key")
)
LOGGING = logging_settings(
    structlog.dev.ConsoleRenderer(colors=False, exception_formatter=structlog.dev.plain_traceback)
)
