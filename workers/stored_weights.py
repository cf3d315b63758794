"""Reads the formats and the number of a model's weights from its safetensors files, to plan an engine's memory.

Standard library only. The module reads the headers of the files, and the contents of scales, zero points and int8
weights. The contents of int8 weights matter because the engine converts weights that have the value -128, which its
kernels do not support.

Source: https://github.com/huggingface/safetensors, "Format".
"""

import json
import math
import mmap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_GROUP = 32  # columns with a common scale in the engine's int4 kernel
_ROUTERS = ("mlp.gate", "block_sparse_moe.gate")
# suffixes of tensors that the readers in engine/models/quantized read together with the values of a weight
_VALUES = ("weight", "qweight", "weight_packed")
_CONSUMED = (
    *("qzeros", "scales", "g_idx", "weight_scale", "weight_scale_inv", "weight_shape", "weight_zero_point"),
    *("weight_g_idx", "input_scale", "input_zero_point", "output_scale", "output_zero_point", "activation_scale"),
)
_SCALES = ("weight_scale_inv", "weight_scale", "scales")
_LOWEST = {"I8": b"\x80", "I32": b"\0"}  # the byte of -128; packed numbers are stored with 128 added


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTensor:
    """A tensor in the bytes `start` to `end` of a file. dtype: the name in the file's header, such as F16."""

    dtype: str
    shape: tuple[int, ...]
    file: Path
    start: int
    end: int

    @property
    def num_elements(self) -> int:
        return math.prod(self.shape)

    def read(self) -> bytes:
        """Raises: OSError."""
        with self.file.open("rb") as file:
            file.seek(self.start)
            return file.read(self.end - self.start)

    def has_byte(self, byte: bytes) -> bool:
        """Raises: OSError."""
        if self.start == self.end:
            return False
        with self.file.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return content.find(byte, self.start, self.end) >= 0


def read_stored(folder: Path) -> dict[str, StoredTensor]:
    """Returns the tensors of the folder's files by name.

    Raises: ValueError: a file is not in the format. OSError.
    """
    return {name: tensor for path in sorted(folder.glob("*.safetensors")) for name, tensor in _tensors(path)}


def _tensors(path: Path) -> Iterable[tuple[str, StoredTensor]]:
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        try:
            header = json.loads(file.read(size))
            for name, stored in header.items():
                if name != "__metadata__":
                    start, end = (8 + size + offset for offset in stored["data_offsets"])
                    tensor = {"dtype": stored["dtype"], "shape": tuple(stored["shape"]), "start": start, "end": end}
                    yield name, StoredTensor(file=path, **tensor)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{path.name} is not a safetensors file: {error}") from error


def kept_format(config: Mapping[str, Any], stored: Mapping[str, StoredTensor]) -> str | None:
    """Returns the format in which the engine keeps the weights of all layers: `int8`, `int4` or `fp8`.

    Returns None if the engine converts at least one weight to the model's dtype, or if the weights' formats differ.
    engine/models/quantized/kept.py makes the same decision from the loaded values.

    config: config.json.
    """
    described = config.get("quantization_config")
    if not isinstance(described, Mapping):
        return None
    formats: set[str | None] = set()
    for name, values in stored.items():
        module, _, suffix = name.rpartition(".")
        if suffix in _VALUES and ".layers." in name and len(values.shape) == 2 and not module.endswith(_ROUTERS):
            formats.add(_format(described, stored, module, values))
            if len(formats) > 1 or None in formats:
                return None
    return formats.pop() if formats else None


def _format(
    described: Mapping[str, Any], stored: Mapping[str, StoredTensor], module: str, values: StoredTensor
) -> str | None:
    names = (f"{module}.{suffix}" for suffix in _SCALES)
    scales = next((stored[name] for name in names if name in stored), None)
    if scales is None:
        return None
    if values.dtype == "F8_E4M3":
        return "fp8" if _is_per_output(scales, values.shape[0]) else None
    bits = _bits(described, values)
    if bits is None or not _is_plain(described, stored, module, bits):
        return None
    outputs, inputs = reversed(values.shape) if f"{module}.qweight" in stored else values.shape
    inputs *= 32 // bits if values.dtype == "I32" else 1
    num_groups = scales.num_elements // outputs
    if bits <= 4 and num_groups and inputs % (_GROUP * num_groups) == 0 and _fit_float16(scales):
        return "int4"
    if bits == 8 and num_groups <= 1 and inputs % 2 == 0 and not values.has_byte(_LOWEST[values.dtype]):
        return "int8"
    return None


def _fit_float16(scales: StoredTensor) -> bool:
    """Whether the scales' mantissas fit into float16 numbers."""
    if scales.dtype != "F32":
        return scales.dtype in ("F16", "BF16")
    content = scales.read()
    # whether the low 13 bits are 0
    return not any(content[::4]) and not content[1::4].translate(None, bytes(range(0, 256, 32)))


def _bits(described: Mapping[str, Any], values: StoredTensor) -> int | None:
    """Returns the number of bits per number in a tensor of packed integers, or None if it is unknown or differs
    between layers."""
    if values.dtype == "I8":
        return 8
    groups = described.get("config_groups")
    entries = [entry for entry in groups.values() if isinstance(entry, Mapping)] if isinstance(groups, Mapping) else []
    named = {_number_of_bits(entry.get("weights")) for entry in entries} or {_number_of_bits(described)}
    return named.pop() if values.dtype == "I32" and len(named) == 1 else None


def _number_of_bits(described: Any) -> int | None:
    values = described if isinstance(described, Mapping) else {}
    bits = next((values[key] for key in ("num_bits", "bits", "w_bit") if key in values), 4)
    return bits if bits in (2, 4, 8) else None


def _is_per_output(scales: StoredTensor, outputs: int) -> bool:
    return scales.num_elements == 1 or scales.shape in ((outputs,), (outputs, 1))


def _is_plain(described: Mapping[str, Any], stored: Mapping[str, StoredTensor], module: str, bits: int) -> bool:
    """Whether all zero points are the middle of the numbers' range, and the columns are in the order of their
    groups."""
    if any(f"{module}.{suffix}" in stored for suffix in ("weight_zero_point", "weight_g_idx")):
        return False
    is_gptq, zeros = described.get("quant_method") == "gptq", stored.get(f"{module}.qzeros")
    if is_gptq and described.get("desc_act"):
        return False
    if zeros is None or not (is_gptq or described.get("zero_point", True)):
        return True
    versions = (described.get("checkpoint_format"), described.get("format"))
    middle = 2 ** (bits - 1) - (is_gptq and "gptq_v2" not in versions)  # version 1 stores each zero point minus 1
    content = zeros.read()
    return content.count(sum(middle << shift for shift in range(0, 8, bits))) == len(content)


def num_parameters(config: Mapping[str, Any], stored: Mapping[str, StoredTensor]) -> int:
    """Returns the number of parameters after quantized weights have been converted to the model's dtype.

    config: config.json.
    """
    described = config.get("quantization_config")
    described = described if isinstance(described, Mapping) else {}
    total = 0
    for name, tensor in stored.items():
        module, _, suffix = name.rpartition(".")
        has_values = any(f"{module}.{values}" in stored for values in _VALUES)
        if name.endswith("_blocks") and tensor.dtype == "U8":
            total += 2 * tensor.num_elements  # MXFP4
        elif (name.endswith("_scales") and tensor.dtype == "U8") or (suffix in _CONSUMED and has_values):
            continue
        elif tensor.dtype == "I32":
            total += tensor.num_elements * 32 // (_bits(described, tensor) or 4)
        else:
            total += tensor.num_elements
    return total
