"""Without a GPU, Triton's interpreter runs the kernels; without triton, nothing does."""

import importlib.util
import os
import sys

import torch

collect_ignore_glob: list[str] = [] if importlib.util.find_spec("triton") else ["test_*.py"]

if not torch.cuda.is_available():
    assert "triton" not in sys.modules, "triton decides on its import whether it interprets"
    os.environ["TRITON_INTERPRET"] = "1"
