"""Configures the tests of the Triton kernels.

Without a GPU, the kernels run in Triton's interpreter (kernels/cuda/interpreter.py). Without triton, pytest does not
collect these tests. With a GPU, all tests that launch kernels are marked `gpu`, even tests without a parameter in
bfloat16 (tests/kernels/cuda/device.py).
"""

import importlib.util

import pytest

from tests.kernels.cuda.device import HAS_GPU

_WITHOUT_LAUNCHES = ("test_compiles", "test_interpreter")

collect_ignore_glob: list[str] = [] if importlib.util.find_spec("triton") else ["test_*.py"]


@pytest.hookimpl(tryfirst=True)  # the mark must be set before pytest evaluates -m
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HAS_GPU and "kernels/cuda" in item.path.as_posix() and item.path.stem not in _WITHOUT_LAUNCHES:
            item.add_marker(pytest.mark.gpu)
