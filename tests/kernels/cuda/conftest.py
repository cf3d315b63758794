"""Without a GPU, Triton's interpreter runs the kernels (see tests/conftest.py); without triton, tests are skipped."""

import importlib.util

collect_ignore_glob: list[str] = [] if importlib.util.find_spec("triton") else ["test_*.py"]
