"""Writes the results of a measurement and its conditions to `<folder>/<GPU's name>/<name>.json`."""

import json
import os
import platform
import re
import subprocess
import sys
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[2]
DEFAULT_FOLDER = ROOT / "benchmarks" / "results"
_PACKAGES = ("torch", "triton", "transformers", "numpy")
_CLOCKS = ("clocks.sm", "clocks.mem", "power.draw", "power.limit", "temperature.gpu", "driver_version")


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    device: str  # the name that the device reports
    commit: str
    started_at: str
    command: str
    versions: dict[str, str]
    gpu: dict[str, str]  # clocks, power, temperature and driver before the run, from nvidia-smi

    @classmethod
    def now(cls, device: torch.device) -> "Machine":
        on_gpu = device.type == "cuda"
        return cls(
            device=torch.cuda.get_device_name(device) if on_gpu else platform.processor() or platform.machine(),
            commit=commit(),
            started_at=datetime.now(UTC).isoformat(timespec="seconds"),
            command=" ".join([Path(sys.argv[0]).stem, *sys.argv[1:]]),
            versions={"python": platform.python_version()} | {name: metadata.version(name) for name in _PACKAGES},
            gpu=_gpu_state() if on_gpu else {},
        )


def commit() -> str:
    """Returns the checked-out commit, or $SLIPSTREAM_COMMIT if it is set, for trees without Git history."""
    if given := os.environ.get("SLIPSTREAM_COMMIT"):
        return given
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        result = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return result.stdout.strip()


def _gpu_state() -> dict[str, str]:
    command = ["nvidia-smi", f"--query-gpu={','.join(_CLOCKS)}", "--format=csv,noheader"]
    try:
        result = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30)
    except (OSError, subprocess.SubprocessError):
        return {}
    first = result.stdout.splitlines()[0]
    return dict(zip(_CLOCKS, (value.strip() for value in first.split(",")), strict=True))


def folder_name(device_name: str) -> str:
    """Returns a device's name in lower case with hyphens: nvidia-h100-80gb-hbm3."""
    return re.sub(r"[^a-z0-9]+", "-", device_name.lower()).strip("-") or "unknown"


def write(folder: Path, machine: Machine, name: str, values: dict[str, Any]) -> Path:
    """Writes the file atomically and returns its path."""
    path = folder / folder_name(machine.device) / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_text(json.dumps({"machine": asdict(machine)} | values, indent=2) + "\n", encoding="utf-8")
    part.replace(path)
    return path
