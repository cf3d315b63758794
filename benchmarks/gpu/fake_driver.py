"""Lets triton compile kernels for an H100 on a machine without a GPU.

A fake driver replaces the CUDA driver. It launches nothing, so tensors may be in the host's memory, where a tensor
needs no memory until it is written. The driver reports each compiled kernel and each launch.
"""

import re
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

H100_SHARED_BYTES = 232_448
_CUOBJDUMP = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"


@dataclass(frozen=True, slots=True)
class CompiledKernel:
    """A compiled variant of a kernel. shared: bytes of shared memory per program; stack: bytes per thread."""

    name: str
    cubin: bytes
    shared: int
    registers: int
    stack: int


@dataclass(frozen=True, slots=True)
class Launch:
    kernel: CompiledKernel
    grid: tuple[int, int, int]

    @property
    def num_programs(self) -> int:
        x, y, z = self.grid
        return x * y * z


class FakeDriver:
    """Stands in for the driver of an H100, with the methods that triton calls."""

    def __init__(
        self, on_compiled: Callable[[CompiledKernel], None], on_launch: Callable[[Launch], None] = lambda _: None
    ) -> None:
        self.utils = self
        self._on_compiled = on_compiled
        self._on_launch = on_launch
        self._kernels: list[CompiledKernel] = []  # the handle of a loaded kernel is its index

    def activate(self) -> None:
        driver.set_active(self)

    def load_binary(self, name: str, binary: bytes, shared: int, device: int) -> tuple[int, int, int, int, int]:
        usage = dump(binary, "-res-usage")
        words = dict(word.split(":", 1) for word in usage.split() if word.startswith(("REG:", "STACK:")))
        kernel = CompiledKernel(name, binary, shared, int(words["REG"]), int(words["STACK"]))
        self._kernels.append(kernel)
        self._on_compiled(kernel)
        return 0, len(self._kernels) - 1, 0, 0, 1024  # module, function, registers, spills, threads per block

    def get_device_properties(self, device: int) -> dict[str, int]:
        return {"max_shared_mem": H100_SHARED_BYTES}

    def launcher_cls(self, source: Any, metadata: Any) -> Callable[..., None]:
        def launch(x: int, y: int, z: int, stream: int, function: int, *_: object) -> None:
            self._on_launch(Launch(self._kernels[function], (x, y, z)))

        return launch

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)  # compute capability 9.0, warps of 32 threads

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


def dump(cubin: bytes, option: str) -> str:
    """Returns what cuobjdump prints about a compiled kernel; option: "-sass" or "-res-usage"."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        return subprocess.run([str(_CUOBJDUMP), option, file.name], capture_output=True, text=True, check=True).stdout


def main_loop(sass: str) -> list[str]:
    """Returns the instructions of the innermost loop that multiplies matrices, or an empty list if there is none."""
    found = re.findall(r"^\s*/\*([0-9a-f]{4,})\*/\s+(?:@!?U?P\w+ )?([A-Z][\w.]*)\s*([^;]*);", sass, re.MULTILINE)
    instructions = [(int(address, 16), name, operands) for address, name, operands in found]
    loops = []
    for end, name, operands in instructions:
        target = re.search(r"0x([0-9a-f]+)", operands)
        if name == "BRA" and target and int(target[1], 16) < end:
            body = [name for address, name, _ in instructions if int(target[1], 16) <= address <= end]
            if any(is_matrix_product(name) for name in body):
                loops.append(body)
    return min(loops, key=len, default=[])


def is_matrix_product(name: str) -> bool:
    return name.startswith(("HGMMA", "QGMMA", "IGMMA", "HMMA", "IMMA"))
