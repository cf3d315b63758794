"""Without a GPU, the kernels run in Triton's interpreter (kernels/cuda/interpreter.py); without triton, no test is
collected.
"""

import importlib.util

collect_ignore_glob: list[str] = [] if importlib.util.find_spec("triton") else ["test_*.py"]
