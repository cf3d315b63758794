"""Adds LoRA updates to the results of linear layers. Each row may have a different adapter, or none.

    out[m] += up_a (down_a x[m])     for every row m with an adapter a

`lora` calls `linear` for both products, so a row has the same bits in any batch. `stacked_lora` is for CUDA: it reads
the weights of all adapters from one tensor, and updates all rows of a batch in two launches.

Source: Hu et al. 2021, arXiv:2106.09685; many adapters in a batch: Punica, arXiv:2310.18547.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from kernels.checks import check_tensor
from kernels.linear import LinearWeight, linear


@dataclass(frozen=True, slots=True)
class LoraWeight:
    """An update of rank R of a weight [N, K]. down: [R, K]. up: [N, R], multiplied by alpha / R."""

    down: LinearWeight
    up: LinearWeight


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraLayer:
    """The updates of one decoder layer by an adapter. A product is None if the adapter does not update it."""

    qkv: LoraWeight | None = None
    output: LoraWeight | None = None
    gate_up: LoraWeight | None = None
    down: LoraWeight | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleUpdates(LoraLayer):
    """The updates of a layer whose products are not fused, by the name of the module."""

    modules: Mapping[str, LoraWeight]


@dataclass(frozen=True, slots=True, eq=False)
class LoraRun:
    """The rows first .. first + count - 1 of a pass, which share an adapter.

    layers: the adapter's updates of each of the decoder's layers.
    """

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
    """The updates of one product by A adapters, in the dtype of x.

    down: [A, R, K]. up: [A, N, R], multiplied by each adapter's alpha / rank. R is the largest rank; the weights of
    adapters with a lower rank are padded with zeros.
    """

    down: Tensor
    up: Tensor

    @classmethod
    def of(cls, weights: Sequence[LoraWeight | None]) -> "LoraStack | None":
        """Stacks unpacked weights; None stands for an adapter that does not update the product.

        Returns: None if no adapter updates the product.
        """
        given = [weight for weight in weights if weight is not None]
        if not given:
            return None
        rank = max(weight.down.out_features for weight in given)
        zeros = LoraWeight(*(_zeros(side) for side in (given[0].down, given[0].up)))
        complete = [zeros if weight is None else weight for weight in weights]
        return cls(
            torch.stack([pad(w.down.data, (0, 0, 0, rank - w.down.data.shape[0])) for w in complete]),
            torch.stack([pad(w.up.data, (0, rank - w.up.data.shape[1])) for w in complete]),
        )


def _zeros(weight: LinearWeight) -> LinearWeight:
    return replace(weight, data=torch.zeros_like(weight.data))


@dataclass(frozen=True, slots=True, eq=False)
class StackedRows:
    """The adapter of each row of a pass, and the stacked weights of all adapters.

    adapters: [M] int64, -1 for rows without an adapter.
    num_runs: maximum number of runs. A run consists of adjacent rows that have the same adapter, or none.
    layers: the stacks of each decoder layer, by the product's name in `LoraLayer`.
    """

    adapters: Tensor
    num_runs: int
    layers: tuple[Mapping[str, LoraStack], ...]


def stacked_lora_reference(x: Tensor, out: Tensor, adapters: Tensor, stack: LoraStack) -> None:
    """Reference of `stacked_lora`. It updates each row separately."""
    for row, adapter in enumerate(adapters.tolist()):
        if adapter >= 0:
            inner = (x[row].float() @ stack.down[adapter].float().T).to(x.dtype)
            out[row] += inner.float() @ stack.up[adapter].float().T


def stacked_lora(x: Tensor, out: Tensor, adapters: Tensor, stack: LoraStack, *, num_runs: int | None = None) -> None:
    """Adds each row's update in place.

    Args:
        x: [M, K] contiguous. out: [M, N] float32.
        adapters: [M] int64, -1 for rows without an adapter.
        num_runs: as in `StackedRows`. None: the rows of each adapter form one run, and the rows without an adapter
            form another run.

    Raises: ValueError: shapes or dtypes do not fit.
    """
    (M, K), (A, R, _) = x.shape, stack.down.shape
    check_tensor(stack.down, "down", (A, R, K), x.dtype)
    check_tensor(stack.up, "up", (A, out.shape[1], R), x.dtype)
    check_tensor(out, "out", (M, None), torch.float32)
    check_tensor(adapters, "adapters", (M,), torch.int64)
    if x.is_cuda:
        from kernels.cuda.lora import stacked_lora as launch  # imported here, because triton requires CUDA

        launch(x, out, adapters, stack, num_runs)
        return
    stacked_lora_reference(x, out, adapters, stack)
