"""Memory that reveals missing and out-of-bounds writes of a kernel.

Within `with Poisoned()`, every new tensor is filled with NaN or, if it has integers, with an invalid value. If a kernel
does not write an element, the comparison with the reference fails. Each tensor lies between two guards, areas of
known bytes. `damage()` lists the tensors whose guards were overwritten.
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
        result = func(*args, **(kwargs or {}))
        return self._poisoned(result) if func in _ALLOCATIONS else result

    def damage(self) -> list[str]:
        """Returns a description of the out-of-bounds writes around each tensor. Offsets are in bytes."""
        descriptions = []
        for memory, size in self._guarded:
            before, behind = memory[:_GUARD] != _GUARD_BYTE, memory[_GUARD + size :] != _GUARD_BYTE
            # Offsets count from the start of the tensor, so those in the first guard are negative.
            offsets = torch.cat((before.nonzero().flatten() - _GUARD, behind.nonzero().flatten() + size))
            if offsets.numel():
                written = f"{offsets.numel()} bytes written outside a tensor of {size} bytes"
                descriptions.append(f"{written}, the first at offset {int(offsets[0])}")
        return descriptions

    def _poisoned(self, like: Tensor) -> Tensor:
        size = like.numel() * like.itemsize
        memory = torch.full((size + 2 * _GUARD,), _GUARD_BYTE, dtype=torch.uint8, device=like.device)
        self._guarded.append((memory, size))
        body = memory[_GUARD : _GUARD + size].view(like.dtype).view(like.shape)
        return body.fill_(float("nan") if like.dtype.is_floating_point else _invalid_integer(like.dtype))


def _invalid_integer(dtype: torch.dtype) -> int:
    return max(_INVALID_INTEGER, int(torch.iinfo(dtype).min))
