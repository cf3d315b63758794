"""Runs the tests of numerics as other processors would: `python -m tests.processors`, part of `make test-wide`.

OpenBLAS and ATen choose their code by the processor. Their variables make them choose that of another one, if this
processor can execute it. What cannot run here is named with the reason.
"""

import os
import platform
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

INTERPRETED = (
    *("tests/kernels", "tests/benchmarks/gpu", "tests/engine/graph_decoding"),
    *("--ignore", "tests/kernels/cuda/test_compiles.py"),  # compiled for a GPU: the same on every processor
)
COMPILED = ("tests/kernels", "--ignore", "tests/kernels/cuda", "tests/engine/test_equality.py")


@dataclass(frozen=True, slots=True)
class Processor:
    """One choice of code paths, and the flag of /proc/cpuinfo that they need."""

    variable: str
    value: str
    flag: str
    tests: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.variable}={self.value}"


PROCESSORS = (
    Processor("OPENBLAS_CORETYPE", "Haswell", "avx2", INTERPRETED),
    Processor("OPENBLAS_CORETYPE", "SkylakeX", "avx512bw", INTERPRETED),
    Processor("OPENBLAS_CORETYPE", "Zen", "avx2", INTERPRETED),
    Processor("OPENBLAS_CORETYPE", "Prescott", "pni", INTERPRETED),
    Processor("ATEN_CPU_CAPABILITY", "default", "sse2", COMPILED),
    Processor("ATEN_CPU_CAPABILITY", "avx2", "avx2", COMPILED),
)


def flags() -> set[str]:
    """Instruction sets of this processor; none where the system does not list those of x86-64."""
    file = Path("/proc/cpuinfo")
    lines = file.read_text().splitlines() if file.exists() else []
    return next((set(line.split(":")[1].split()) for line in lines if line.startswith("flags")), set())


def main() -> int:
    available, failed = flags(), []
    for processor in PROCESSORS:
        if processor.flag not in available:
            print(f"{processor}: skipped, this {platform.machine()} processor lacks {processor.flag}", flush=True)
            continue
        began = time.monotonic()
        command = [sys.executable, "-m", "pytest", *processor.tests]
        code = subprocess.run(command, env={**os.environ, processor.variable: processor.value}).returncode
        print(f"{processor}: {'passed' if code == 0 else 'FAILED'} in {time.monotonic() - began:.0f} s", flush=True)
        if code:
            failed.append(str(processor))
    print("All passed." if not failed else f"Failed: {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
