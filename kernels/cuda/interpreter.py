"""Sets up Triton's interpreter, which runs the kernels with numpy on machines without a GPU.

The interpreter computes `tl.dot` with BLAS, which can round a row differently depending on the row's index in a tile
(OpenBLAS does so with its Haswell kernels). Tensor cores round all rows alike, and tests check that a row has the same
bits in any batch. The function `dot` of this file therefore replaces the interpreter's product. It gives a row the same
bits at any index, on every CPU.
"""

import importlib
import os
from pathlib import Path
from typing import Any

import numpy as np


def interpret_without_gpu() -> None:
    """Selects the interpreter on a machine without an NVIDIA GPU, and replaces the interpreter's `tl.dot`.

    If TRITON_INTERPRET=1 was set before, `tl.dot` is also replaced on a machine with a GPU.

    Must be called before anything imports triton, because triton reads the environment variable on import.
    """
    if not Path("/dev/nvidiactl").exists():
        os.environ.setdefault("TRITON_INTERPRET", "1")
    if os.environ.get("TRITON_INTERPRET") == "1":
        importlib.import_module("triton.runtime.interpreter").InterpreterBuilder.create_dot = _create_dot


def _create_dot(builder: Any, a: Any, b: Any, total: Any, input_precision: Any, max_num_imprecise_acc: Any) -> Any:
    """Replaces `InterpreterBuilder.create_dot`. a, b and total are tiles, as `TensorHandle` objects of triton.

    Raises: TypeError: a tile is bfloat16 or float8, which the interpreter stores as integers.
    """
    for operand in (a, b):
        if operand.dtype.is_floating() and not np.issubdtype(operand.data.dtype, np.floating):
            raise TypeError(f"Triton's interpreter cannot multiply tiles of {operand.dtype}; use float32")
    return type(total)(dot(a.data, b.data, total.data), total.dtype.scalar)


def dot(a: np.ndarray, b: np.ndarray, total: np.ndarray) -> np.ndarray:
    """Returns total + a @ b. Each element is accumulated in the order of K with elementwise operations.

    The bits of an element therefore depend only on its row of a, its column of b and its element of total.

    Args:
        a: [..., M, K]
        b: [..., K, N]
        total: [..., M, N]. Its dtype is used for the accumulation.
    """
    total = total.copy()
    columns_of_a = np.moveaxis(a, -1, 0).astype(total.dtype, order="C")[..., None]  # [K, ..., M, 1]
    rows_of_b = np.moveaxis(b, -2, 0).astype(total.dtype, order="C")[..., None, :]  # [K, ..., 1, N]
    product = np.empty_like(total)
    for column, row in zip(columns_of_a, rows_of_b, strict=True):
        np.multiply(column, row, out=product)
        total += product
    return total
