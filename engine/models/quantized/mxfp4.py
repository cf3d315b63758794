"""Reads experts' weights in MXFP4, as gpt-oss has them: 4-bit floats (E2M1) in blocks of 32 that share a power of two.

`NAME_blocks` [E, N, K / 32, 16] uint8 has two numbers in each byte, the first one in the low half. `NAME_scales`
[E, N, K / 32] uint8 has the exponents, increased by 127. The two tensors encode one weight. In a bf16 checkpoint of the
same model, this weight has the name `NAME` and the shape [E, K, N]: K and N are exchanged. bfloat16 can represent all
values, so the conversion to bfloat16 loses nothing.

E experts, N outputs, K inputs.

Source: OCP Microscaling Formats (MX) Specification v1.0; gpt-oss model card, arXiv:2508.10925.
"""

from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor

from engine.errors import QuantizedWeightsInvalid, ScalesMissing
from engine.models.quantized.weight import QuantizedWeight, Tensors

_MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_NUMBERS = (*_MAGNITUDES, *(-value for value in _MAGNITUDES))  # the highest of the four bits is the sign
_BLOCK_BYTES = 16
_EXPONENT_BIAS = 127
_NAN = 255  # the scale that stands for NaN
_BLOCKS, _SCALES = "_blocks", "_scales"


class Mxfp4Format:
    """The format in which only experts are quantized.

    `read` returns None, which means that a module is not quantized: `Mxfp4Tensors` has already widened the experts.
    """

    name = "mxfp4"
    stored_as = "weight"
    suffixes: frozenset[str] = frozenset()

    @classmethod
    def of(cls, _: dict[str, Any]) -> "Mxfp4Format":
        return cls()

    def read(self, tensors: Tensors, module: str) -> QuantizedWeight | None:
        return None


class Mxfp4Tensors:
    """The tensors of an MXFP4 checkpoint, with the names and values of a bf16 checkpoint of the same model."""

    def __init__(self, stored: Tensors) -> None:
        self._stored = stored
        parts = [name for name in stored.names if name.endswith((_BLOCKS, _SCALES))]
        self._quantized = {name.removesuffix(_BLOCKS).removesuffix(_SCALES) for name in parts}
        self._names = self._quantized.union(stored.names).difference(parts)

    @property
    def names(self) -> Collection[str]:
        return self._names

    def tensor(self, name: str) -> Tensor:
        """Widens a quantized tensor to bfloat16. Raises: ScalesMissing, QuantizedWeightsInvalid."""
        if name not in self._quantized:
            return self._stored.tensor(name)
        for part in (name + _BLOCKS, name + _SCALES):
            if part not in self._stored.names:
                raise ScalesMissing(f"{name} is quantized, but the folder holds no {part}: the upload is incomplete")
        return _widened(name, self._stored.tensor(name + _BLOCKS), self._stored.tensor(name + _SCALES))


def _widened(name: str, blocks: Tensor, scales: Tensor) -> Tensor:
    """Returns [E, K, N] bfloat16."""
    is_mxfp4 = blocks.dtype == scales.dtype == torch.uint8 and blocks.dim() == 4
    if not is_mxfp4 or blocks.shape != (*scales.shape, _BLOCK_BYTES):
        raise QuantizedWeightsInvalid(
            f"{name}{_BLOCKS} must be uint8 [E, N, G, {_BLOCK_BYTES}] and {name}{_SCALES} uint8 [E, N, G], "
            f"got {blocks.dtype} {list(blocks.shape)} and {scales.dtype} {list(scales.shape)}"
        )
    if (scales == _NAN).any():
        raise QuantizedWeightsInvalid(f"{name}{_SCALES} must be numbers, got NaN; copy or quantize the model again")
    E, N, groups, _ = blocks.shape
    numbers = torch.tensor(_NUMBERS)
    out = torch.empty(E, groups * 2 * _BLOCK_BYTES, N, dtype=torch.bfloat16)
    for expert in range(E):  # one at a time, which bounds the memory for intermediate results
        pairs = torch.stack((blocks[expert] & 15, blocks[expert] >> 4), dim=-1).flatten(2)  # [N, G, 32]
        values = torch.ldexp(numbers[pairs.int()], scales[expert].int().unsqueeze(-1) - _EXPONENT_BIAS)
        out[expert] = values.flatten(1).t()
    return out
