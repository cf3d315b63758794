"""The clients, their pinned versions, and a virtual environment for each of them in the user's cache folder."""

import hashlib
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

INSTALL_SECONDS = 900.0


class NotInstallableError(Exception):
    """pip cannot install the client on this machine; the message is pip's last line."""


@dataclass(frozen=True, slots=True)
class Client:
    name: str  # of the distribution
    version: str
    extras: str = ""
    others: tuple[str, ...] = ()  # requirements that are installed in the same step

    @property
    def script(self) -> Path:
        return Path(__file__).with_name("scripts") / f"use_{self.name.replace('-', '_')}.py"

    @property
    def requirements(self) -> tuple[str, ...]:
        return (f"{self.name}{self.extras}=={self.version}", *self.others)


CLIENTS = (
    Client("openai", "3.54.0"),
    Client("litellm", "1.102.4"),
    Client("instructor", "1.17.0"),
    Client("langchain-openai", "1.7.3"),
    Client("openai-agents", "0.24.0"),
    Client("pydantic-ai-slim", "2.68.0", "[openai]"),
    Client("anthropic", "2.12.0"),
    Client("lm-eval", "0.4.13", "[api]", ("transformers==5.23.0",)),
    Client("guidellm", "0.8.1", others=("torch==2.13.0",)),
    Client("aiperf", "0.13.0"),
)


def python_of(client: Client) -> Path:
    """Returns the interpreter of the client's environment, which is installed if it is missing or has other pins.

    Raises: NotInstallableError
    """
    digest = hashlib.sha256("\n".join((sys.version, *client.requirements)).encode()).hexdigest()[:12]
    folder = _cache() / f"{client.name}-{digest}"
    python = folder / "bin" / "python"
    complete = folder / "complete"
    if complete.exists():
        return python
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    command = [str(python), "-m", "pip", "install", "--quiet", *client.requirements]
    result = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_SECONDS)
    if result.returncode:
        shutil.rmtree(folder)
        raise NotInstallableError((result.stderr.strip().splitlines() or ["pip failed without a message"])[-1])
    complete.touch()
    return python


def _cache() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "slipstream" / "clients"
