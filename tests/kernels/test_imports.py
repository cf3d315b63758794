"""Importing the top level of `kernels/` does not load triton, which may be missing on a machine without a GPU."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_modules_outside_kernels_cuda_do_not_load_triton() -> None:
    modules = [f"kernels.{file.stem}" for file in (ROOT / "kernels").glob("*.py") if file.stem != "__init__"]
    program = f"import sys, {', '.join(modules)}; sys.exit('triton' in sys.modules)"
    assert len(modules) > 10
    assert subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=False).returncode == 0
