"""The total memory of a device: a GPU's memory, or the machine's memory within the limits of this process's cgroups."""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import torch

_GROUPS = Path("/sys/fs/cgroup")


def total_bytes(device: torch.device, *, groups: Path = _GROUPS, own_groups: Path = Path("/proc/self/cgroup")) -> int:
    """Returns the total memory of the device.

    Args:
        groups: where the control groups are mounted.
        own_groups: the file that names the control groups of this process, one per line: `number:controllers:path`.
    """
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[1]
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min((machine, *_limits(groups, own_groups)))


def _limits(groups: Path, own_groups: Path) -> Iterator[int]:
    """Yields the memory limits of the process's control groups and of their parents (cgroups, versions 1 and 2)."""
    lines = own_groups.read_text().splitlines() if own_groups.exists() else []
    for _, controllers, path in (line.split(":", 2) for line in lines):
        root, name = (groups, "memory.max") if not controllers else (groups / "memory", "memory.limit_in_bytes")
        if controllers and "memory" not in controllers.split(","):
            continue
        own = root / path.lstrip("/")
        for folder in (own, *own.parents):
            with suppress(OSError, ValueError):  # the file is missing, or holds `max`, which means no limit
                yield int((folder / name).read_text())
            if folder == root:
                break
