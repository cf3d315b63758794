"""Reads checkpoints of compressed-tensors with int4, int8 or float8 weights: weight = (q - zero) scale.

    pack-quantized              weight_packed [N, K bits / 32] int32 packs the numbers q + 2 ** (bits - 1), the lowest
                                bits first; weight_shape holds N and K
    int-quantized, float-quantized, naive-quantized       weight [N, K] int8 or float8_e4m3fn is q

weight_scale is one number, [N, 1], [N, G], or one number for each block. Without weight_zero_point, zero is 0. Packed
weights have packed zero points [N bits / 32, G]. weight_g_idx [K] assigns columns to groups in any order. Scales of
activations are ignored, because activations are not quantized here. Shape letters: N outputs, K inputs (columns), G
groups of columns.

Source: https://github.com/vllm-project/compressed-tensors, format of `pack_quantized` and `naive_quantized`.
"""

from typing import Any, NoReturn

import torch
from torch import Tensor

from engine.errors import QuantizedCheckpoint, QuantizedWeightsInvalid, ScalesMissing
from engine.models.quantized.float8 import block_of, with_float_scales
from engine.models.quantized.weight import (
    QuantizedWeight,
    Tensors,
    check_packed,
    check_shape,
    narrowed,
    num_groups,
    read_scales,
    unpack,
)

_FORMATS = ("pack-quantized", "int-quantized", "float-quantized", "naive-quantized", "mixed-precision")
_BLOCK = (128, 128)
_SCALES = ("weight_scale",)
_UNUSED = -1  # fills weight_g_idx if the columns are in order


class CompressedTensorsFormat:
    stored_as = "weight_packed"
    suffixes = frozenset(
        {"weight_scale", "weight_shape", "weight_zero_point", "weight_g_idx"}
        | {f"{side}_{part}" for side in ("input", "output") for part in ("scale", "zero_point")}
    )

    def __init__(self, bits: frozenset[int], group_sizes: frozenset[int], block: tuple[int, int], name: str) -> None:
        self._bits, self._group_sizes, self._block, self.name = bits, group_sizes, block, name

    @classmethod
    def of(cls, values: dict[str, Any]) -> "CompressedTensorsFormat":
        """values: quantization settings of config.json. Raises: QuantizedCheckpoint: they are not supported."""
        groups = values.get("config_groups")
        weights = [_weights_of(group) for group in groups.values()] if isinstance(groups, dict) else []
        formats = {values.get("format"), *(w["format"] for w in weights if w.get("format"))}
        if not weights or not formats <= set(_FORMATS):
            _refuse(f"format must be one of {', '.join(_FORMATS)}, got {sorted(map(str, formats))}")
        sparsity = values.get("sparsity_config") or {}
        if sparsity.get("format", "dense") != "dense" or (values.get("transform_config") or {}).get("config_groups"):
            _refuse("sparse or rotated weights are not read")
        bits = frozenset(w["num_bits"] for w in weights)
        sizes = frozenset(w["group_size"] for w in weights if type(w.get("group_size")) is int and w["group_size"] > 0)
        blocks = {block_of(w["block_structure"]) for w in weights if w.get("block_structure")}
        if len(blocks) > 1:
            _refuse("blocks of several sizes are not read")
        kinds = sorted({f"{'fp' if w['type'] == 'float' else 'int'}{w['num_bits']}" for w in weights})
        return cls(bits, sizes, next(iter(blocks), _BLOCK), f"compressed-tensors {' and '.join(kinds)}")

    def read(self, tensors: Tensors, module: str) -> QuantizedWeight | None:
        """Reads a weight; returns None if it is not quantized. Raises: ScalesMissing, QuantizedWeightsInvalid."""
        packed = f"{module}.weight_packed" in tensors.names
        if packed:
            values, bits = self._unpacked(tensors, module)
        else:
            values, bits = tensors.tensor(f"{module}.weight"), 8
            if values.dtype == torch.float8_e4m3fn:
                return with_float_scales(module, values, read_scales(tensors, module, _SCALES), self._block)
            if values.dtype != torch.int8:
                return None
        rows, columns = values.shape
        scales = read_scales(tensors, module, _SCALES)
        if scales.numel() == 1 or tuple(scales.shape) == (rows,):
            scales = scales.reshape(-1, 1).expand(rows, 1)
        group_size = self._group_size(module, scales, rows, columns)
        groups = _groups(tensors, module, columns, group_size)
        if f"{module}.weight_zero_point" in tensors.names:
            zeros = _zeros(tensors, module, bits, rows, scales.shape[1], packed=packed)
            places = torch.arange(columns) // group_size if groups is None else groups
            values = narrowed(values.to(torch.int16) - zeros[:, places])
        return QuantizedWeight(values=values, scales=scales, groups=groups, group_size=group_size)

    def _unpacked(self, tensors: Tensors, module: str) -> tuple[Tensor, int]:
        """Returns signed values [N, K] int8 and the number of bits of each."""
        name = f"{module}.weight_packed"
        packed = check_packed(name, tensors.tensor(name))
        if f"{module}.weight_shape" not in tensors.names:
            raise ScalesMissing(f"the folder holds no {module}.weight_shape: the upload is incomplete")
        shape = tensors.tensor(f"{module}.weight_shape").tolist()
        rows, columns = shape if len(shape) == 2 else (0, 0)
        bits = [b for b in self._bits if tuple(packed.shape) == (rows, -(-columns * b // 32))]
        if len(bits) != 1:
            stored = f"{name} is {list(packed.shape)}, which does not hold {shape} numbers"
            raise QuantizedWeightsInvalid(f"{stored} of {sorted(self._bits)} bits: copy or quantize the model again")
        return narrowed(unpack(packed, bits[0])[:, :columns] - 2 ** (bits[0] - 1)), bits[0]

    def _group_size(self, module: str, scales: Tensor, rows: int, columns: int) -> int:
        sizes = [size for size in self._group_sizes if tuple(scales.shape) == (rows, num_groups(columns, size))]
        if tuple(scales.shape) == (rows, 1):
            return columns
        if len(sizes) != 1:
            raise QuantizedWeightsInvalid(
                f"{module}.weight_scale is {list(scales.shape)}, which does not fit {[rows, columns]} in groups of "
                f"{sorted(self._group_sizes)}: config.json describes another quantization"
            )
        return sizes[0]


def _weights_of(group: Any) -> dict[str, Any]:
    """Returns the settings with which an entry of config_groups quantizes weights. Raises: QuantizedCheckpoint."""
    weights = group.get("weights") if isinstance(group, dict) else None
    if not isinstance(weights, dict):
        _refuse("config_groups must say how weights are quantized")
    kind = weights.get("type", "int"), weights.get("num_bits")
    if kind not in (("int", 4), ("int", 8), ("float", 8)):
        _refuse(f"weights must be int4, int8 or float8, got {kind[0]}{kind[1]}")
    return {**weights, "type": kind[0], "format": group.get("format")}


def _refuse(reason: str) -> NoReturn:
    raise QuantizedCheckpoint(f"compressed-tensors: {reason}; upload the bf16 checkpoint")


def _groups(tensors: Tensors, module: str, columns: int, group_size: int) -> Tensor | None:
    name = f"{module}.weight_g_idx"
    if name not in tensors.names:
        return None
    groups = check_shape(name, tensors.tensor(name), columns).long()
    low, high = groups.aminmax()
    if int(low) == int(high) == _UNUSED:
        return None
    if int(low) < 0 or int(high) >= num_groups(columns, group_size):
        raise QuantizedWeightsInvalid(f"{name} names groups that do not exist: copy or quantize the model again")
    return groups


def _zeros(tensors: Tensors, module: str, bits: int, rows: int, count: int, *, packed: bool) -> Tensor:
    """Returns zero points [N, G] int16."""
    name = f"{module}.weight_zero_point"
    zeros = tensors.tensor(name)
    if packed:
        zeros = (unpack(check_packed(name, zeros).t(), bits)[:, :rows] - 2 ** (bits - 1)).t()
    elif zeros.numel() == 1 or tuple(zeros.shape) == (rows,):
        zeros = zeros.reshape(-1, 1).expand(rows, 1)
    return check_shape(name, zeros, rows, count).to(torch.int16)
