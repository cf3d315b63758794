"""Argument checks that all launchers use, and the dtype numbers of the C kernels."""

import torch
from torch import Tensor

DTYPE_CODES = {torch.float32: 0, torch.bfloat16: 1}


def dtype_code(tensor: Tensor, name: str) -> int:
    """Returns the number of the dtype in C kernels. Raises: ValueError: the dtype is neither float32 nor bfloat16."""
    try:
        return DTYPE_CODES[tensor.dtype]
    except KeyError:
        raise ValueError(f"{name} must be float32 or bfloat16, got {tensor.dtype}") from None


def check_tensor(tensor: Tensor, name: str, shape: tuple[int | None, ...], dtype: torch.dtype) -> None:
    """Checks shape, dtype and contiguity. `None` in `shape` means any size.

    Raises: ValueError: other shape or dtype, or not contiguous.
    """
    fits = tensor.dim() == len(shape) and all(
        want is None or want == have for want, have in zip(shape, tensor.shape, strict=True)
    )
    if not fits or tensor.dtype != dtype:
        raise ValueError(f"{name} must be {dtype} {list(shape)}, got {tensor.dtype} {list(tensor.shape)}")
    if not tensor.is_contiguous():
        raise ValueError(f"{name} must be contiguous, got strides {tensor.stride()}")
