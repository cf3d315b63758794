"""Triton's interpreter, which runs the kernels in numpy where there is no GPU: in tests and in benchmark rehearsals.

The interpreter's own `tl.dot` calls BLAS, which may round a row differently depending on its index in a tile (OpenBLAS
does so on CPUs for which it selects its Haswell kernels). A tensor core does not, and our kernels promise that a row
has the same bits in any batch. The product below therefore replaces `tl.dot`. Its rows have the same bits at any index
on every CPU.
"""

import importlib
import os
from pathlib import Path
from typing import Any

import numpy as np


def interpret_without_gpu() -> None:
    """Selects the interpreter and its product on a machine without an NVIDIA GPU, or if TRITON_INTERPRET=1 is set.

    Tests and benchmarks call this function before anything imports triton, because triton reads the variable on import.
    """
    if not Path("/dev/nvidiactl").exists():
        os.environ.setdefault("TRITON_INTERPRET", "1")
    if os.environ.get("TRITON_INTERPRET") == "1":
        importlib.import_module("triton.runtime.interpreter").InterpreterBuilder.create_dot = _create_dot


def _create_dot(builder: Any, a: Any, b: Any, total: Any, input_precision: Any, max_num_imprecise_acc: Any) -> Any:
    """Replaces `InterpreterBuilder.create_dot`. a, b and total are triton's `TensorHandle`s, each holding a tile.

    Raises: TypeError: bfloat16 or float8, which the interpreter stores as integers.
    """
    for operand in (a, b):
        if operand.dtype.is_floating() and not np.issubdtype(operand.data.dtype, np.floating):
            raise TypeError(f"Triton's interpreter cannot multiply tiles of {operand.dtype}; use float32")
    return type(total)(dot(a.data, b.data, total.data), total.dtype.scalar)


def dot(a: np.ndarray, b: np.ndarray, total: np.ndarray) -> np.ndarray:
    """Returns total + a @ b, where an element's bits depend only on its row of a, column of b and element of total.

    Every element is accumulated along K in order, with elementwise operations only.

    Args:
        a: [..., M, K]
        b: [..., K, N]
        total: [..., M, N], whose dtype is that of the accumulation.
    """
    total = total.copy()
    columns_of_a = np.moveaxis(a, -1, 0).astype(total.dtype, order="C")[..., None]  # [K, ..., M, 1]
    rows_of_b = np.moveaxis(b, -2, 0).astype(total.dtype, order="C")[..., None, :]  # [K, ..., 1, N]
    product = np.empty_like(total)
    for column, row in zip(columns_of_a, rows_of_b, strict=True):
        np.multiply(column, row, out=product)
        total += product
    return total
