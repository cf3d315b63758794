"""Without a GPU, the kernels run in the interpreter (kernels/cuda/interpreter.py); without triton, no test runs."""

import importlib.util

collect_ignore_glob: list[str] = [] if importlib.util.find_spec("triton") else ["test_*.py"]
