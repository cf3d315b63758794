"""Detects missing and out-of-bounds writes of a kernel.

Within `Poisoned()`, every new tensor is filled with NaN, or with an invalid integer. If the kernel does not write an
element, the comparison with the reference fails. Before and after the tensor, there are guards of known bytes.
`damage()` lists the tensors whose guards have changed.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

_GUARD = 4096  # bytes, a multiple of any alignment that a kernel requires
_GUARD_BYTE = 0xA5
_INVALID_INTEGER = -7777
_ALLOCATIONS = (torch.empty, torch.empty_like, torch.Tensor.new_empty)


class Poisoned(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self._guarded: list[tuple[Tensor, int]] = []  # memory including its guards, and the bytes between them

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        made = func(*args, **(kwargs or {}))
        return self._poisoned(made) if func in _ALLOCATIONS else made

    def damage(self) -> list[str]:
        """Describes each tensor with out-of-bounds writes. Offsets are in bytes from its start."""
        found = []
        for memory, size in self._guarded:
            before, behind = memory[:_GUARD] != _GUARD_BYTE, memory[_GUARD + size :] != _GUARD_BYTE
            # Offsets count from the start of the tensor, so offsets in the first guard are negative.
            offsets = torch.cat((before.nonzero().flatten() - _GUARD, behind.nonzero().flatten() + size))
            if offsets.numel():
                found.append(f"{offsets.numel()} bytes around {size}, the first at {int(offsets[0])}")
        return found

    def _poisoned(self, like: Tensor) -> Tensor:
        size = like.numel() * like.itemsize
        memory = torch.full((size + 2 * _GUARD,), _GUARD_BYTE, dtype=torch.uint8, device=like.device)
        self._guarded.append((memory, size))
        body = memory[_GUARD : _GUARD + size].view(like.dtype).view(like.shape)
        return body.fill_(float("nan") if like.dtype.is_floating_point else _invalid_integer(like.dtype))


def _invalid_integer(dtype: torch.dtype) -> int:
    return max(_INVALID_INTEGER, int(torch.iinfo(dtype).min))
