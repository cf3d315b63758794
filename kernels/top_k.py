"""Returns the largest logits of each row, and the row's log-sum-exp, from which drafters compute probabilities.

P(column) = exp(value - log_mass)        log_mass = log sum_v exp(logits[v])
"""

import torch
from torch import Tensor

from kernels.checks import check_tensor
from kernels.cpu.library import library

_MAX_COUNT = 64  # for a larger count, the kernel's insertion sort is slower than torch's topk


def top_k_reference(logits: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Reference of `top_k`, except that the order of equal logits is undefined."""
    values, columns = logits.topk(count, dim=-1)
    return values, columns, logits.logsumexp(-1)


def top_k(logits: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Returns values [M, count] float32, descending, their columns int64, and log masses [M] float32.

    Args:
        logits: [M, V] float32. Of equal logits, the lower column comes first (undefined if the reference is used).

    The CPU kernel is faster than torch: with 4 rows of 1809 logits on two cores, torch's logsumexp needs 0.2 ms just to
    wake its threads.

    Raises: ValueError: logits are not float32 [M, V], or count is not in 1..V.
    """
    M, V = logits.shape
    check_tensor(logits, "logits", (M, V), torch.float32)
    if not 1 <= count <= V:
        raise ValueError(f"count must be in 1..{V}, got {count}")
    kernels = library() if logits.device.type == "cpu" else None
    if kernels is None or count > _MAX_COUNT:
        return top_k_reference(logits, count)
    values, log_masses = torch.empty(M, count), torch.empty(M)
    columns = torch.empty(M, count, dtype=torch.int64)
    kernels.slipstream_top_k(*(tensor.data_ptr() for tensor in (logits, values, columns, log_masses)), M, V, count)
    return values, columns, log_masses
