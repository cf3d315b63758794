"""Reads float8_e4m3fn weights with one scale per tensor, per output, or per block (DeepSeek publishes blocks).

`module.weight` holds the values. `module.weight_scale_inv` or `module.weight_scale` holds the scales, which are factors
in both cases: a scalar, [N] or [N, 1] for N outputs, or one factor for each block.

Sources: DeepSeek-V3's README_WEIGHTS.md; the configuration of `fp8` and `fbgemm_fp8` in transformers.
"""

from typing import Any

import torch
from torch import Tensor

from engine.errors import QuantizedCheckpoint, QuantizedWeightsInvalid
from engine.models.quantized.weight import QuantizedWeight, Tensors, num_groups, read_scales

_DEEPSEEK_BLOCK = (128, 128)
_SCALES = ("weight_scale_inv", "weight_scale")


class Float8Format:
    """block: numbers of outputs and columns of a block; used only if a weight has one scale per block."""

    stored_as = "weight"
    suffixes = frozenset({"weight_scale_inv", "weight_scale", "input_scale", "activation_scale"})

    def __init__(self, block: tuple[int, int] = _DEEPSEEK_BLOCK, *, name: str = "fp8") -> None:
        self._block, self.name = block, name

    @classmethod
    def of(cls, values: dict[str, Any]) -> "Float8Format":
        """values: quantization settings of config.json. Raises: QuantizedCheckpoint: they are not supported."""
        if values.get("fmt", "e4m3") not in ("e4m3", "float8_e4m3fn"):
            raise QuantizedCheckpoint(f"fp8 weights must be e4m3, got {values['fmt']!r}: upload the bf16 checkpoint")
        block = values.get("weight_block_size")
        return cls(block_of(block), name=f"fp8 blocks {block[0]}x{block[1]}") if block else cls()

    def read(self, tensors: Tensors, module: str) -> QuantizedWeight | None:
        """Reads a weight; returns None if it is not quantized. Raises: ScalesMissing, QuantizedWeightsInvalid."""
        values = tensors.tensor(f"{module}.weight")
        if values.dtype != torch.float8_e4m3fn:
            return None
        return with_float_scales(module, values, read_scales(tensors, module, _SCALES), self._block)


def block_of(values: Any) -> tuple[int, int]:
    """Returns the size of a block, as config.json gives it. Raises: QuantizedCheckpoint: it is not two numbers."""
    if isinstance(values, list) and len(values) == 2 and all(type(size) is int and size > 0 for size in values):
        return values[0], values[1]
    raise QuantizedCheckpoint(f"a block must be two positive numbers, got {values!r}: correct config.json")


def with_float_scales(module: str, values: Tensor, scales: Tensor, block: tuple[int, int]) -> QuantizedWeight:
    """Returns a float8 weight. The shape of `scales` tells whether there is one per tensor, per output or per block.

    Raises: QuantizedWeightsInvalid.
    """
    if values.dim() != 2:
        raise QuantizedWeightsInvalid(f"{module}.weight must be a matrix, got {list(values.shape)}")
    rows, columns = values.shape
    in_blocks = (num_groups(rows, block[0]), num_groups(columns, block[1]))
    group_size = columns
    if scales.numel() == 1:
        scales = scales.reshape(1, 1).expand(rows, 1)
    elif tuple(scales.shape) in ((rows,), (rows, 1)):
        scales = scales.reshape(rows, 1)
    elif tuple(scales.shape) == in_blocks:
        scales, group_size = scales.repeat_interleave(block[0], 0)[:rows], block[1]
    else:
        raise QuantizedWeightsInvalid(
            f"the scales of {module}.weight must be one number, [{rows}, 1], or {list(in_blocks)} for blocks of "
            f"{block[0]}x{block[1]}, got {list(scales.shape)}"
        )
    return QuantizedWeight(values=values, scales=scales, groups=None, group_size=group_size)
