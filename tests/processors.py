"""Runs the tests of numerics with the code for other processors, as a part of `make test-wide`.

    python -m tests.processors [OPTION ...]    the options are those of pytest, such as -n 2

OpenBLAS and ATen each select code for the processor on which they run. An environment variable makes them use the code
for another processor instead. If this processor lacks the instructions, the tests are skipped and the output says so.
"""

import os
import platform
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

# Compiles the CPU kernels for other processors and runs their tests: `make test` has done this, and neither variable
# changes it.
_PORTABLE = ("--ignore", "tests/kernels/test_portable.py")
# Tests that run Triton kernels in the interpreter, which multiplies with numpy and thus with OpenBLAS.
OPENBLAS = (
    *("tests/kernels", "tests/benchmarks/gpu", "tests/engine/graph_decoding"),
    *("--ignore", "tests/kernels/cuda/test_compiles.py"),  # compiles for a GPU, with the same result on every processor
    *_PORTABLE,
)
# Tests that run PyTorch's own operators, which are part of ATen.
ATEN = ("tests/kernels", "--ignore", "tests/kernels/cuda", *_PORTABLE, "tests/engine/test_equality.py")


@dataclass(frozen=True, slots=True)
class Processor:
    """A processor whose code is selected by setting `variable` to `value`. The code needs the CPU feature `flag`."""

    variable: str
    value: str
    flag: str
    tests: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.variable}={self.value}"


PROCESSORS = (
    Processor("OPENBLAS_CORETYPE", "Haswell", "avx2", OPENBLAS),
    Processor("OPENBLAS_CORETYPE", "SkylakeX", "avx512bw", OPENBLAS),
    Processor("OPENBLAS_CORETYPE", "Zen", "avx2", OPENBLAS),
    Processor("OPENBLAS_CORETYPE", "Prescott", "pni", OPENBLAS),
    Processor("ATEN_CPU_CAPABILITY", "default", "sse2", ATEN),
    Processor("ATEN_CPU_CAPABILITY", "avx2", "avx2", ATEN),
)


def flags() -> set[str]:
    """Returns the x86 feature flags in /proc/cpuinfo; an empty set where the system has no such list."""
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
        command = [sys.executable, "-m", "pytest", *processor.tests, *sys.argv[1:]]
        code = subprocess.run(command, env={**os.environ, processor.variable: processor.value}).returncode
        print(f"{processor}: {'passed' if code == 0 else 'FAILED'} in {time.monotonic() - began:.0f} s", flush=True)
        if code:
            failed.append(str(processor))
    print("All passed." if not failed else f"Failed: {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
