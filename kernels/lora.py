"""Low-rank updates of linear layers, other ones for other rows.

    out[m] += up_a (down_a x[m])     for every row m with an adapter a; rows without one are left as they are

Both products are `linear`, so an updated row has the same bits in any company. `stacked_lora` does all adapters of a
batch in two launches, from weights that lie on top of each other.

Source: Hu et al. 2021, arXiv:2106.09685; many adapters in a batch: Punica, arXiv:2310.18547.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.checks import check_tensor
from kernels.linear import LinearWeight, linear


@dataclass(frozen=True, slots=True)
class LoraWeight:
    """down: [R, K]. up: [N, R], alpha / r included."""

    down: LinearWeight
    up: LinearWeight


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraLayer:
    """One adapter's updates of a decoder layer's products; None where it has none."""

    qkv: LoraWeight | None = None
    output: LoraWeight | None = None
    gate_up: LoraWeight | None = None
    down: LoraWeight | None = None


@dataclass(frozen=True, slots=True, eq=False)
class LoraRun:
    """Rows first..first + count - 1 of a pass, which share an adapter; `layers` as the decoder's."""

    first: int
    count: int
    layers: tuple[LoraLayer, ...]


def lora(x: Tensor, out: Tensor, updates: Sequence[tuple[LoraRun, LoraWeight | None]]) -> None:
    """Adds each run's update in place.

    Args:
        x: [M, K] contiguous in the weights' dtype.
        out: [M, N] float32.
    """
    for run, weight in updates:
        if weight is not None:
            rows = slice(run.first, run.first + run.count)
            linear(linear(x[rows], weight.down).to(x.dtype), weight.up, add_to=out[rows])


@dataclass(frozen=True, slots=True)
class LoraStack:
    """A product's updates of A adapters, in the dtype of x. down: [A, R, K]; up: [A, N, R], alpha / r included.

    Adapters of a lower rank are filled up with zeros, which changes no bit.
    """

    down: Tensor
    up: Tensor


def stacked_lora_reference(x: Tensor, out: Tensor, adapters: Tensor, stack: LoraStack) -> None:
    """As `stacked_lora`, row by row."""
    for row, adapter in enumerate(adapters.tolist()):
        if adapter >= 0:
            inner = (x[row].float() @ stack.down[adapter].float().T).to(x.dtype)
            out[row] += inner.float() @ stack.up[adapter].float().T


def stacked_lora(x: Tensor, out: Tensor, adapters: Tensor, stack: LoraStack) -> None:
    """Adds each row's update in place.

    Args:
        x: [M, K] contiguous. out: [M, N] float32.
        adapters: [M] int64, -1 for none. Rows of one adapter stand beside each other.

    Raises: ValueError: shapes or dtypes do not fit.
    """
    (M, K), (A, R, _) = x.shape, stack.down.shape
    check_tensor(stack.down, "down", (A, R, K), x.dtype)
    check_tensor(stack.up, "up", (A, out.shape[1], R), x.dtype)
    check_tensor(out, "out", (M, None), torch.float32)
    check_tensor(adapters, "adapters", (M,), torch.int64)
    if x.is_cuda:
        from kernels.cuda.lora import stacked_lora as launch  # not above: triton is only where CUDA is

        launch(x, out, adapters, stack)
        return
    stacked_lora_reference(x, out, adapters, stack)
