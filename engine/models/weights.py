"""Reads a dense decoder's weights from safetensors files, the only accepted format, and lays them out for the kernels.

Shape letters: V the vocabulary size, H the hidden size, D the elements of a head.
"""

import json
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from engine.config import MixtureConfig, ModelConfig
from engine.errors import ModelNotLoadable
from engine.models.quantized.kept import pack_as_stored
from engine.models.quantized.source import WeightSource, format_of
from engine.models.quantized.weight import QuantizedWeight
from kernels.decoder import LayerWeights
from kernels.experts import Expert, Experts
from kernels.linear import LinearWeight, pack, pack_fp8, pack_int4, pack_int8
from kernels.memory import empty, trim_heap
from kernels.moe import Mixture
from kernels.rope import HeadNorms

_PACKS = {"auto": pack, "bf16": pack, "int8": pack_int8, "int4": pack_int4, "fp8": pack_fp8}
HEAD_PACKS = {**_PACKS, "int4": pack_int8}
_MAX_MAPPED_BYTES = 8 << 20  # files are opened again after this many bytes were read, which frees the pages read before
# by model type: the names of the module with the experts, and of the experts' gate, up and down projections
_EXPERT_NAMES = {
    "mixtral": ("block_sparse_moe", ("w1", "w3", "w2")),
    "qwen3_moe": ("mlp", ("gate_proj", "up_proj", "down_proj")),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderWeights:
    embedding: Tensor  # [V, H]
    layers: tuple[LayerWeights, ...]
    final_norm: Tensor  # [H] float32
    lm_head: Tensor  # [V, H], not packed, because drafters share it
    lm_head_packed: LinearWeight


class TensorSource(Protocol):
    """Returns tensors by the names of an unquantized checkpoint, from files or from memory."""

    def tensor(self, name: str) -> Tensor:
        """Returns the tensor; a quantized weight is converted to float32."""

    def quantized(self, name: str) -> QuantizedWeight | None:
        """Returns the weight as it is stored, or None if it is not quantized."""


class _Files:
    """Opens the safetensors files of a folder on demand."""

    def __init__(self, model_dir: Path) -> None:
        index = model_dir / "model.safetensors.index.json"
        if index.exists():
            files = json.loads(index.read_text())["weight_map"]
        else:
            names = sorted(model_dir.glob("*.safetensors"))
            files = {key: path.name for path in names for key in _keys(path)}
        self._file_names: dict[str, str] = files
        self._folder = model_dir
        self._open: dict[str, safe_open] = {}
        self._mapped_bytes = 0

    @property
    def names(self) -> Collection[str]:
        return self._file_names.keys()

    def tensor(self, name: str) -> Tensor:
        """Returns a tensor that uses the mapped file as its memory.

        The pages of the file stay in memory as long as a tensor uses the mapping or the file is open.
        """
        if name not in self._file_names:
            raise ModelNotLoadable(f"{self._folder} holds no tensor {name}")
        file = self._file_names[name]
        if Path(file).name != file:
            raise ModelNotLoadable(f"the index of {self._folder} points outside the folder: {file}")
        if file not in self._open:
            self._open[file] = safe_open(self._folder / file, framework="pt")
        tensor: Tensor = self._open[file].get_tensor(name)
        self._mapped_bytes += tensor.nbytes
        if self._mapped_bytes > _MAX_MAPPED_BYTES:
            self._open, self._mapped_bytes = {}, 0
        return tensor


def _keys(path: Path) -> list[str]:
    with safe_open(path, framework="pt") as file:
        return list(file.keys())


@contextmanager
def _as_load_errors(model_dir: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, SafetensorError, KeyError) as error:
        raise ModelNotLoadable(f"weights in {model_dir} can't be read: {error}") from error


@contextmanager
def open_weights(model_dir: Path) -> Iterator[WeightSource]:
    """Opens the folder's tensors by name.

    Raises: ModelNotLoadable: a file is missing or damaged; also if reading fails in the body of the `with` statement.
    """
    form = format_of(model_dir) if (model_dir / "config.json").exists() else None
    with _as_load_errors(model_dir):
        yield WeightSource(_Files(model_dir), form)


def load_weights(
    model_dir: Path, config: ModelConfig, dtype: torch.dtype, device: torch.device, *, weights: str = "auto"
) -> DecoderWeights:
    """Reads all weights of a folder.

    Raises: ModelNotLoadable: a file or tensor is missing, damaged or has a wrong shape.
    """
    with open_weights(model_dir) as source:
        return build_weights(source, config, dtype, device, weights=weights)


def build_weights(
    source: TensorSource, config: ModelConfig, dtype: torch.dtype, device: torch.device, *, weights: str = "auto"
) -> DecoderWeights:
    """Reads all weights. Fuses query, key and value into one weight, and gate and up into another.

    weights: as in EngineConfig. With "auto", quantized weights keep their format if a kernel for it exists.

    Raises: ModelNotLoadable: the shape of a tensor contradicts the configuration.
    """
    reader = DecoderReader(source, config, dtype, device, weights)
    size = (config.vocab_size, config.hidden_size)
    embedding = unmapped(reader.tensor("model.embed_tokens.weight", *size))
    lm_head = embedding if config.tie_word_embeddings else unmapped(reader.tensor("lm_head.weight", *size))
    # The head is packed before the layers are read, because packing the head takes the most temporary memory.
    lm_head_packed = HEAD_PACKS[weights](lm_head)
    return DecoderWeights(
        embedding=embedding,
        layers=tuple(map(reader.layer, trimmed(config.num_layers))),
        final_norm=reader.norm("model.norm.weight", config.hidden_size),
        lm_head=lm_head,
        lm_head_packed=lm_head_packed,
    )


def trimmed(num_layers: int) -> Iterator[int]:
    """Yields the indices of the layers. After each layer, returns freed memory to the operating system."""
    for index in range(num_layers):
        yield index
        trim_heap()  # otherwise glibc keeps freed memory, in 1B models about a fifth of each layer's size


def all_outputs(name: str, size: int) -> slice:
    return slice(None)


class DecoderReader:
    """Reads tensors of a checkpoint. The methods raise ModelNotLoadable if a tensor is missing or has a wrong shape."""

    def __init__(
        self,
        source: TensorSource,
        config: ModelConfig,
        dtype: torch.dtype,
        device: torch.device,
        weights: str,
        outputs: Callable[[str, int], slice] = all_outputs,
    ) -> None:
        """outputs: from a tensor's name and its number of outputs, returns the slice of outputs to keep."""
        self._source, self._config, self._dtype, self._device = source, config, dtype, device
        self._weights = weights
        self._outputs = outputs

    def tensor(self, name: str, *shape: int) -> Tensor:
        tensor = self._source.tensor(name)
        if tuple(tensor.shape) != shape:
            raise ModelNotLoadable(f"{name} must be {list(shape)}, got {list(tensor.shape)}")
        return tensor[self._outputs(name, shape[0])].to(device=self._device, dtype=self._dtype)

    def norm(self, name: str, size: int) -> Tensor:
        return self.tensor(name, size).float()

    def layer(self, index: int) -> LayerWeights:
        config, base = self._config, f"model.layers.{index}"
        H, D, attention, mlp = config.hidden_size, config.head_dim, f"{base}.self_attn", f"{base}.mlp"
        head_norms = None
        if config.qk_norm:
            query, key = self.norm(f"{attention}.q_norm.weight", D), self.norm(f"{attention}.k_norm.weight", D)
            head_norms = HeadNorms(query, key, config.norm_eps)
        heads = {"q_proj": config.num_heads * D, "k_proj": config.num_kv_heads * D, "v_proj": config.num_kv_heads * D}
        gates = {"gate_proj": config.intermediate_size, "up_proj": config.intermediate_size}
        mixture = config.mixture if config.mixture and index not in config.mixture.dense_layers else None
        bias = config.mlp_bias
        return LayerWeights(
            input_norm=self.norm(f"{base}.input_layernorm.weight", H),
            qkv=self._linear(attention, heads, H, bias=config.attention_bias),
            head_norms=head_norms,
            output=self._linear(attention, {"o_proj": H}, config.num_heads * D, bias=config.output_bias),
            post_norm=self.norm(f"{base}.post_attention_layernorm.weight", H),
            gate_up=None if mixture else self._linear(mlp, gates, H, bias=bias),
            down=None if mixture else self._linear(mlp, {"down_proj": H}, config.intermediate_size, bias=bias),
            mixture=self._mixture(base, mixture) if mixture else None,
        )

    def _mixture(self, base: str, mixture: MixtureConfig) -> Mixture:
        H, width = self._config.hidden_size, mixture.intermediate_size
        block, (gate, up, down) = _EXPERT_NAMES[self._config.model_type]

        def expert(index: int) -> Expert:
            prefix = f"{base}.{block}.experts.{index}"
            gate_up = self._linear(prefix, {gate: width, up: width}, H, bias=False)
            return Expert(gate_up, self._linear(prefix, {down: H}, width, bias=False))

        return Mixture(
            router=pack(self.tensor(f"{base}.{block}.gate.weight", mixture.num_experts, H)),
            num_chosen=mixture.num_experts_per_token,
            normalized=mixture.normalized,
            experts=Experts([expert(index) for index in range(mixture.num_experts)]),
        )

    def _linear(self, prefix: str, parts: dict[str, int], columns: int, *, bias: bool) -> LinearWeight:
        shapes = {f"{prefix}.{part}.weight": (rows, columns) for part, rows in parts.items()}
        biases = [self.tensor(f"{prefix}.{part}.bias", rows) for part, rows in parts.items()] if bias else None
        joined = None if biases is None else torch.cat(biases)
        keeps = self._weights == "auto"
        kept = self._kept(shapes, joined) if keeps else None
        return kept or _PACKS[self._weights](
            torch.cat([self.tensor(name, *shape) for name, shape in shapes.items()]), joined
        )

    def _kept(self, shapes: dict[str, tuple[int, int]], bias: Tensor | None) -> LinearWeight | None:
        """Returns the stacked weights in the format in which they are stored, or None if no kernel has that format."""
        stored = {name: weight for name in shapes if (weight := self._source.quantized(name)) is not None}
        if {name: weight.shape for name, weight in stored.items()} != shapes:
            return None
        outputs = [self._outputs(name, rows) for name, (rows, _) in shapes.items()]
        return pack_as_stored(list(stored.values()), self._dtype, self._device, bias, outputs)


def unmapped(weight: Tensor) -> Tensor:
    """Returns a copy of a weight. Without it, the pages of the file would stay mapped as long as the weight exists."""
    if weight.device.type != "cpu":
        return weight
    copy = empty(tuple(weight.shape), weight.dtype)
    copy.copy_(weight)
    return copy
