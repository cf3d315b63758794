"""Low-rank updates of linear layers, other ones for other rows.

    out[m] += up_a (down_a x[m])     for every row m with an adapter a; rows without one are left as they are

Both products are `linear`, so an updated row has the same bits in any company.

Source: Hu et al. 2021, arXiv:2106.09685; many adapters in a batch: Punica, arXiv:2310.18547.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

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
