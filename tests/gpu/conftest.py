"""Marks all tests in this folder as tests that need a GPU, and skips them on machines without a GPU."""

from pathlib import Path

import pytest
import torch

_HERE = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)  # the mark must be set before pytest evaluates -m
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if _HERE in item.path.parents:
            item.add_marker(pytest.mark.gpu)
            item.add_marker(pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"))
