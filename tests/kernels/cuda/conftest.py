"""Without a GPU, the kernels run in Triton's interpreter (kernels/cuda/interpreter.py). Without triton, these tests are
not collected.
"""

import importlib.util

collect_ignore_glob: list[str] = [] if importlib.util.find_spec("triton") else ["test_*.py"]
