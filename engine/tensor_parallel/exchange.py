"""Gathers the ranks' columns of a tensor during a forward pass, so that every rank has all of them side by side.

Shape letters: M rows, H the hidden size, V the vocabulary size.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from engine.tensor_parallel.cut import Cut
from engine.tensor_parallel.group import Group
from kernels.linear import LinearWeight, linear
from kernels.lora import LoraRun, LoraWeight, lora
from workers.model_sizes import OUTPUT_UNIT

Updates = Sequence[tuple[LoraRun, LoraWeight | None]]


class Exchange:
    """The gather operations of one rank. All ranks must call the same methods in the same order."""

    def __init__(self, cut: Cut, group: Group) -> None:
        self._group = group
        self._own = slice(cut.hidden.start, cut.hidden.stop)
        self._parts = cut.all_ranks()
        self._hidden_widths = [len(part.hidden) for part in self._parts]

    def hidden(self, own: Tensor) -> Tensor:
        """own: the rank's columns of [M, H]. Returns [M, H]."""
        return self._group.gather(own, self._hidden_widths)

    def heads(self, own: Tensor, width: int) -> Tensor:
        """own: the rank's heads of `width` elements each. Returns [M, all heads * width]."""
        return self._group.gather(own, [len(part.heads) * width for part in self._parts])

    def activated(self, own: Tensor, size: int) -> Tensor:
        """own: the rank's part of `size` activations. Returns [M, size]."""
        return self._group.gather(own, [len(part.part(size, OUTPUT_UNIT)) for part in self._parts])

    def logits(self, own: Tensor) -> Tensor | None:
        """own: the logits of the rank's part of the vocabulary. Returns [M, V] on rank 0, None on the others."""
        return self._group.gather_to_first(own, [len(part.vocabulary) for part in self._parts])

    def own_columns(self, x: Tensor) -> Tensor:
        """Returns a copy of the rank's columns of x [M, H]."""
        return x[:, self._own].clone(memory_format=torch.contiguous_format)

    def added(self, residual: Tensor, x: Tensor, weight: LinearWeight, updates: Updates = ()) -> Tensor:
        """Returns residual [M, H] plus the product of x with the weight.

        Each rank computes the sum for its own columns, which are then gathered.
        """
        own = self.own_columns(residual)
        linear(x, weight, add_to=own)
        lora(x, own, updates)
        return self.hidden(own)
