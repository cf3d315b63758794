"""Stacks the weights of the LoRA adapters in use, as the input of `kernels.lora.stacked_lora` on CUDA.

When a row first needs an adapter, the stacks are rebuilt with this adapter and without adapters that are no longer
available. CUDA graphs that were captured with the old stacks are then invalid; `version` increases to show this.
"""

from collections.abc import Hashable, Iterable
from collections.abc import Sequence as Many
from itertools import groupby

import torch

from engine.lora.adapters import Adapters, LoraAdapter
from kernels.lora import LoraStack, StackedRows
from kernels.memory import to_device

_PRODUCTS = ("qkv", "output", "gate_up", "down")


def stacks_for(adapters: Adapters, device: torch.device) -> "LoraStacks | None":
    """Returns the stacks for a CUDA device; None for other devices, where each run of rows is computed separately.

    A run consists of consecutive rows with the same adapter.
    """
    return LoraStacks(adapters, device) if device.type == "cuda" else None


class LoraStacks:
    def __init__(self, adapters: Adapters, device: torch.device) -> None:
        self._loaded = adapters
        self._device = device
        self._stacked: list[LoraAdapter] = []
        self.layers: tuple[dict[str, LoraStack], ...] = ()
        self.version = 0

    def rows(self, roots: Many[Hashable]) -> StackedRows | None:
        """Returns the rows' adapters and the stacks, which are rebuilt if an adapter is missing in them.

        `roots`: the adapter of each row, or None. Returns None if no row has an adapter.
        """
        if not any(isinstance(root, LoraAdapter) for root in roots):
            return None
        if not self.has(roots):
            self.rebuild_with(roots)
        adapters = [self.index(root) for root in roots]
        num_runs = sum(1 for _ in groupby(adapters))
        return StackedRows(to_device(torch.tensor(adapters), self._device), num_runs, self.layers)

    def index(self, root: Hashable) -> int:
        """Returns the index of an adapter in the stacks; -1 if `root` is None."""
        return self._stacked.index(root) if isinstance(root, LoraAdapter) else -1

    def has(self, roots: Iterable[Hashable]) -> bool:
        return all(root in self._stacked for root in roots if isinstance(root, LoraAdapter))

    def rebuild_with(self, roots: Iterable[Hashable]) -> None:
        """Rebuilds the stacks with the adapters among `roots`; the indices of other adapters may change."""
        still_available = [adapter for adapter in self._stacked if self._loaded.is_current(adapter)]
        new = [root for root in roots if isinstance(root, LoraAdapter)]
        self._stacked = list(dict.fromkeys((*still_available, *new)))
        self.layers = tuple(
            {
                product: stack
                for product in _PRODUCTS
                if (stack := LoraStack.of([getattr(layer, product) for layer in layers])) is not None
            }
            for layers in zip(*(adapter.layers for adapter in self._stacked), strict=True)
        )
        self.version += 1
