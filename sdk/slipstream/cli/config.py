"""The URL and API key of the CLI, from the environment or from the file that `slipstream login` writes."""

import json
import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Login:
    base_url: str
    api_key: str


def config_path() -> Path:
    """Returns `$XDG_CONFIG_HOME/slipstream/login.json`, which need not exist. XDG_CONFIG_HOME defaults to ~/.config."""
    folder = os.environ.get("XDG_CONFIG_HOME")
    return (Path(folder) if folder else Path.home() / ".config") / "slipstream" / "login.json"


def read_login() -> Login | None:
    """Reads URL and key from the file; SLIPSTREAM_BASE_URL and SLIPSTREAM_API_KEY take precedence.

    Returns: None if the URL or the key is missing. Raises: ValueError: the file is damaged.
    """
    path = config_path()
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        stored_login = Login(str(stored["base_url"]), str(stored["api_key"]))
    except FileNotFoundError:
        stored_login = Login("", "")
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is damaged; run `slipstream login` again") from error
    base_url = os.environ.get("SLIPSTREAM_BASE_URL") or stored_login.base_url
    api_key = os.environ.get("SLIPSTREAM_API_KEY") or stored_login.api_key
    return Login(base_url, api_key) if base_url and api_key else None


def write_login(login: Login) -> Path:
    """Writes the file and returns its path. The file is created with permissions that let only its owner read it."""
    path = config_path()
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(f".{os.getpid()}")
    part.unlink(missing_ok=True)
    with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as written:
        json.dump({"base_url": login.base_url, "api_key": login.api_key}, written)
    part.replace(path)
    return path
