"""Chooses the reader for a checkpoint, and reads its tensors under the names that they have without quantization."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from engine.config import read_config
from engine.errors import QuantizedCheckpoint, ScalesMissing
from engine.models.quantized.awq import AwqFormat
from engine.models.quantized.compressed_tensors import CompressedTensorsFormat
from engine.models.quantized.float8 import Float8Format
from engine.models.quantized.gptq import GptqFormat
from engine.models.quantized.mxfp4 import Mxfp4Format, Mxfp4Tensors
from engine.models.quantized.weight import QuantizedWeight, Tensors
from workers.model_folders import QUANTIZATION_FILES, QUANTIZATION_KEYS, unreadable_quantization


class Format(Protocol):
    """Reads the weights of one quantization format.

    stored_as: name suffix of the tensor that holds a quantized weight's values.
    suffixes: name suffixes of the weight's other tensors, such as scales.
    """

    @property
    def name(self) -> str: ...

    @property
    def stored_as(self) -> str: ...

    @property
    def suffixes(self) -> frozenset[str]: ...

    def read(self, tensors: Tensors, module: str) -> QuantizedWeight | None:
        """Reads the weight of a module; returns None if it is not quantized."""


_FORMATS: dict[str, Callable[[dict[str, Any]], Format]] = {
    "fp8": Float8Format.of,
    "fbgemm_fp8": Float8Format.of,
    "compressed-tensors": CompressedTensorsFormat.of,
    "awq": AwqFormat.of,
    "gptq": GptqFormat.of,
    "mxfp4": Mxfp4Format.of,
}


def format_of(model_dir: Path) -> Format | None:
    """Returns the reader for the folder's quantization; None if config.json describes no quantization.

    Raises: ModelNotLoadable: config.json is not readable. QuantizedCheckpoint: the quantization is not supported.
    """
    values = read_config(model_dir)
    files = [name for name in QUANTIZATION_FILES if (model_dir / name).exists()]
    if (message := unreadable_quantization(values, files)) is not None:
        raise QuantizedCheckpoint(message)
    described = next((values[key] for key in QUANTIZATION_KEYS if values.get(key)), None)
    return None if described is None else _FORMATS[described["quant_method"]](described)


class WeightSource:
    """Returns tensors by the names that they have in an unquantized checkpoint."""

    def __init__(self, tensors: Tensors, form: Format | None) -> None:
        """`form`: None if config.json has no quantization; float8 weights may then have DeepSeek's block scales."""
        self._tensors = Mxfp4Tensors(tensors) if isinstance(form, Mxfp4Format) else tensors
        self._format = form or Float8Format()

    def names(self) -> Iterator[str]:
        for name in self._tensors.names:
            module, _, suffix = name.rpartition(".")
            if suffix == self._format.stored_as:
                yield f"{module}.weight"
            elif suffix not in self._format.suffixes or not self._is_quantized(module):
                yield name

    def quantized(self, name: str) -> QuantizedWeight | None:
        """Reads a quantized weight; returns None if the tensor is not quantized. Raises: ModelNotLoadable."""
        module, _, suffix = name.rpartition(".")
        if suffix != "weight" or not self._is_quantized(module):
            return None
        return self._format.read(self._tensors, module)

    def stored(self, name: str) -> Tensor:
        """Returns the tensor as it is stored. Raises: ModelNotLoadable."""
        return self._tensors.tensor(name)

    def tensor(self, name: str) -> Tensor:
        """Returns the tensor; a quantized weight is converted to float32. Raises: ModelNotLoadable."""
        if (weight := self.quantized(name)) is not None:
            return weight.widened()
        tensor = self._tensors.tensor(name)
        if not tensor.is_floating_point() or tensor.itemsize == 1:
            raise ScalesMissing(
                f"{name} is {tensor.dtype}, but config.json describes no quantization that says how to read it: "
                "add quantization_config, or upload the bf16 checkpoint"
            )
        return tensor

    def _is_quantized(self, module: str) -> bool:
        names = self._tensors.names
        return f"{module}.{self._format.stored_as}" in names or f"{module}.weight" in names
