"""Reads AWQ checkpoints with 4 bits in the layout `gemm` of AutoAWQ.

    weight[n, k] = (q[k, n] - zero[g, n]) scale[g, n]        q: stored 4-bit numbers; g: the group of input k

`qweight` [K, N / 8] and `qzeros` [G, N / 8] pack eight outputs into an int32, in the order 0, 2, 4, 6, 1, 3, 5, 7 from
the lowest bits on. `scales` is [G, N]. Shape letters: N outputs, K inputs, G groups of inputs.

Source: AutoAWQ, awq/utils/packing_utils.py.
"""

from typing import Any

from engine.errors import QuantizedCheckpoint, ScalesMissing
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

_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
_MIDDLE = 8  # the zero point of weights that are stored without zero points


class AwqFormat:
    stored_as = "qweight"
    suffixes = frozenset({"qzeros", "scales"})

    def __init__(self, group_size: int, *, zero_point: bool) -> None:
        self._group_size, self._zero_point = group_size, zero_point
        self.name = "awq int4"

    @classmethod
    def of(cls, values: dict[str, Any]) -> "AwqFormat":
        """values: quantization settings of config.json. Raises: QuantizedCheckpoint: they are not supported."""
        bits, version = values.get("bits", values.get("w_bit", 4)), str(values.get("version", "gemm")).lower()
        if bits != 4 or version != "gemm":
            message = f"AWQ checkpoints must have 4 bits in the layout gemm, got {bits!r} bits in {version!r}"
            raise QuantizedCheckpoint(f"{message}: upload the bf16 checkpoint")
        size = values.get("group_size", values.get("q_group_size", 128))
        return cls(checked_group_size(size), zero_point=bool(values.get("zero_point", True)))

    def read(self, tensors: Tensors, module: str) -> QuantizedWeight | None:
        """Reads a weight; returns None if it is not quantized. Raises: ScalesMissing, QuantizedWeightsInvalid."""
        if f"{module}.qweight" not in tensors.names:
            return None
        values = unpack(check_packed(f"{module}.qweight", tensors.tensor(f"{module}.qweight")), 4, _ORDER)  # [K, N]
        columns, rows = values.shape
        group_size = columns if self._group_size == -1 else self._group_size
        groups = num_groups(columns, group_size)
        scales = check_shape(f"{module}.scales", read_scales(tensors, module, ("scales",)), groups, rows)
        if self._zero_point:
            name = f"{module}.qzeros"
            if name not in tensors.names:
                raise ScalesMissing(f"the folder holds no {name}: the upload is incomplete")
            zeros = unpack(check_packed(name, tensors.tensor(name)), 4, _ORDER)
            values -= check_shape(name, zeros, groups, rows).repeat_interleave(group_size, 0)[:columns]
        else:
            values -= _MIDDLE
        return QuantizedWeight(values=narrowed(values).t(), scales=scales.t(), groups=None, group_size=group_size)


def checked_group_size(value: Any) -> int:
    """Returns `value`. Raises: QuantizedCheckpoint: it is neither -1 (one group) nor a positive number."""
    if type(value) is int and (value == -1 or value > 0):
        return value
    raise QuantizedCheckpoint(f"group_size must be -1 or a positive number, got {value!r}: correct config.json")
