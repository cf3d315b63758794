"""Reads GPTQ checkpoints with 2, 4 or 8 bits: weight[n, k] = (q[k, n] - zero[g, n]) scale[g, n], where g = g_idx[k].

`qweight` [K bits / 32, N] packs inputs and `qzeros` [G, N bits / 32] packs outputs, the lowest bits first. `scales` is
[G, N]. With `desc_act`, `g_idx` [K] assigns columns to groups in any order. Files in the format `gptq` store each zero
point minus one, files in the format `gptq_v2` store the zero point itself. Shape letters: N outputs, K inputs
(columns), G groups of columns.

Source: GPTQModel and AutoGPTQ, documentation of `checkpoint_format`.
"""

from typing import Any

import torch
from torch import Tensor

from engine.errors import QuantizedCheckpoint, QuantizedWeightsInvalid, ScalesMissing
from engine.models.quantized.awq import checked_group_size
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

_ZERO_OFFSETS = {"gptq": 1, "gptq_v2": 0}


class GptqFormat:
    stored_as = "qweight"
    suffixes = frozenset({"qzeros", "scales", "g_idx"})

    def __init__(self, bits: int, group_size: int, *, zero_offset: int, in_order: bool) -> None:
        self._bits, self._group_size, self._zero_offset, self._in_order = bits, group_size, zero_offset, in_order
        self.name = f"gptq int{bits}"

    @classmethod
    def of(cls, values: dict[str, Any]) -> "GptqFormat":
        """values: quantization settings of config.json. Raises: QuantizedCheckpoint: they are not supported."""
        bits, stored = values.get("bits"), values.get("checkpoint_format") or values.get("format") or "gptq"
        if bits not in (2, 4, 8) or stored not in _ZERO_OFFSETS:
            message = f"GPTQ checkpoints must have 2, 4 or 8 bits in the format {' or '.join(_ZERO_OFFSETS)}"
            raise QuantizedCheckpoint(f"{message}, got {bits!r} bits in {stored!r}: upload the bf16 checkpoint")
        group_size = checked_group_size(values.get("group_size", -1))
        return cls(bits, group_size, zero_offset=_ZERO_OFFSETS[stored], in_order=not values.get("desc_act"))

    def read(self, tensors: Tensors, module: str) -> QuantizedWeight | None:
        """Reads a weight; returns None if it is not quantized. Raises: ScalesMissing, QuantizedWeightsInvalid."""
        if f"{module}.qweight" not in tensors.names:
            return None
        packed = check_packed(f"{module}.qweight", tensors.tensor(f"{module}.qweight"))
        values = unpack(packed.t().contiguous(), self._bits)  # [N, K]
        rows, columns = values.shape
        group_size = columns if self._group_size == -1 else self._group_size
        count = num_groups(columns, group_size)
        scales = check_shape(f"{module}.scales", read_scales(tensors, module, ("scales",)), count, rows)
        groups = self._groups(tensors, module, columns, group_size)
        zeros = self._zeros(tensors, module, count, rows)  # [G, N]
        values -= zeros.t()[:, groups]
        ordered = torch.equal(groups, torch.arange(columns) // group_size)
        return QuantizedWeight(
            values=narrowed(values), scales=scales.t(), groups=None if ordered else groups, group_size=group_size
        )

    def _groups(self, tensors: Tensors, module: str, columns: int, group_size: int) -> Tensor:
        name = f"{module}.g_idx"
        if name not in tensors.names:
            if self._in_order:
                return torch.arange(columns) // group_size
            raise ScalesMissing(f"the folder holds no {name}, which desc_act requires: the upload is incomplete")
        groups = check_shape(name, tensors.tensor(name), columns).long()
        low, high = groups.aminmax()
        if int(low) < 0 or int(high) >= num_groups(columns, group_size):
            raise QuantizedWeightsInvalid(f"{name} names groups that do not exist: copy or quantize the model again")
        return groups

    def _zeros(self, tensors: Tensors, module: str, count: int, rows: int) -> Tensor:
        name = f"{module}.qzeros"
        if name not in tensors.names:
            raise ScalesMissing(f"the folder holds no {name}: the upload is incomplete")
        zeros = check_shape(name, unpack(check_packed(name, tensors.tensor(name)), self._bits), count, rows)
        # The format gptq stores zero points minus one, so it cannot store 0. Tools write 0 in contradictory ways.
        if self._zero_offset and int(zeros.max()) == 2**self._bits - 1:
            message = f"{name} holds a zero point that the format gptq cannot represent"
            raise QuantizedWeightsInvalid(f"{message}: save the model as gptq_v2")
        return zeros + self._zero_offset
