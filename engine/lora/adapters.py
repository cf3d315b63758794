"""Loads LoRA adapters of the target.

A request uses at most one adapter. The requests of one forward pass may use different adapters.

The module reads the two files that peft writes: `adapter_config.json` and `adapter_model.safetensors`. Only plain LoRA
on the linear layers of the decoder is supported. Adapters with other changes (DoRA, biases, embeddings, whole modules)
are refused.
"""

import json
import re
from collections.abc import Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from engine.config import ModelConfig
from engine.errors import AdapterNotLoadable
from engine.models.base import Model
from engine.models.transformers_model import TransformersModel
from kernels.linear import pack
from kernels.lora import LoraLayer, LoraRun, LoraWeight, ModuleUpdates
from workers.contracts import fingerprint

_NAME = re.compile(
    r"base_model\.model\.model\.layers\.(?P<layer>\d+)\.(?:self_attn|mlp)\.(?P<module>\w+)"
    r"\.lora_(?P<side>[AB])(?:\.default)?\.weight"
)
_MAX_RANK = 256
_Parts = dict[tuple[int, str, str], Tensor]  # by layer, module and side, in float32


class LoraAdapter:
    """A LoRA adapter that has been read.

    Adapters are compared by identity. An adapter that is loaded again is a different object, so that it does not use
    the prefixes that were cached with the earlier object.
    """

    def __init__(self, name: str, layers: tuple[LoraLayer, ...], sha256: str) -> None:
        """`sha256`: the hash of the configuration and the weights."""
        self.name = name
        self.layers = layers
        self.sha256 = sha256


class Adapters:
    """The loaded adapters of an engine."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._loaded: dict[str, LoraAdapter] = {}
        self.default: LoraAdapter | None = None  # for requests that name no adapter

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._loaded)

    def get(self, name: str) -> LoraAdapter:
        """Returns a loaded adapter. Raises: ValueError: no adapter with this name is loaded."""
        if name not in self._loaded:
            raise ValueError(f"adapter {name!r} is not loaded; there are: {', '.join(self._loaded) or 'none'}")
        return self._loaded[name]

    def is_current(self, adapter: LoraAdapter) -> bool:
        """Returns whether new requests can still use this adapter."""
        return adapter is self.default or self._loaded.get(adapter.name) is adapter

    def read(self, name: str, folder: Path) -> LoraAdapter:
        """Reads and packs an adapter without making it available. Threads other than the engine's may also call this.

        Raises: AdapterNotLoadable.
        """
        model, device = self._model, self._model.device
        if model.config.latent is not None:
            raise AdapterNotLoadable(f"LoRA is not supported for models of type {model.config.model_type}")
        if isinstance(model, TransformersModel) and device.type != "cpu":
            raise AdapterNotLoadable(f"LoRA of a {model.config.model_type} is only served on CPUs, got {device.type}")
        try:
            values = json.loads((folder / "adapter_config.json").read_text())
            tensors = load_file(folder / "adapter_model.safetensors")
            sha256 = fingerprint(folder, [folder / "adapter_config.json", folder / "adapter_model.safetensors"])
        except (OSError, ValueError) as error:
            raise AdapterNotLoadable(f"{folder.name} holds no readable LoRA adapter: {error}") from error
        _refuse_more_than_lora(values)
        parts, scale = _parts(tensors, model.config.num_layers, device), _Scale(values)
        if isinstance(model, TransformersModel):
            return LoraAdapter(name, _single_layers(parts, scale, model.linears, model.dtype), sha256)
        return LoraAdapter(name, _fused_layers(parts, scale, model.config, model.dtype), sha256)

    def put(self, adapter: LoraAdapter) -> None:
        """Makes an adapter available to new requests; running requests keep the adapter they started with."""
        self._loaded[adapter.name] = adapter

    def load(self, name: str, folder: Path) -> None:
        self.put(self.read(name, folder))

    def unload(self, name: str) -> None:
        """Makes an adapter unavailable to new requests; running requests keep it.

        Raises: ValueError: no adapter with this name is loaded.
        """
        del self._loaded[self.get(name).name]


def lora_runs(roots: Iterable[Hashable]) -> tuple[LoraRun, ...]:
    """Groups consecutive rows with the same adapter into runs.

    roots: the adapter of each row, or None. It is the root of the row's cached prefixes.
    """
    runs: list[LoraRun] = []
    for row, root in enumerate(roots):
        if not isinstance(root, LoraAdapter):
            continue
        last = runs[-1] if runs else None
        if last is not None and last.layers is root.layers and last.first + last.count == row:
            runs[-1] = LoraRun(last.first, last.count + 1, root.layers)
        else:
            runs.append(LoraRun(row, 1, root.layers))
    return tuple(runs)


def _parts(tensors: dict[str, Tensor], num_layers: int, device: torch.device) -> _Parts:
    parts: _Parts = {}
    for name, tensor in tensors.items():
        match = _NAME.fullmatch(name)
        if match is None or int(match["layer"]) >= num_layers:
            raise AdapterNotLoadable(f"tensor {name} belongs to no layer of this model that can have LoRA")
        parts[int(match["layer"]), match["module"], match["side"]] = tensor.to(device=device, dtype=torch.float32)
    other = {"A": "B", "B": "A"}
    if incomplete := {(layer, module) for layer, module, side in parts if (layer, module, other[side]) not in parts}:
        layer, module = min(incomplete)
        raise AdapterNotLoadable(f"{module} of layer {layer} has only one of lora_A and lora_B")
    return parts


def _single_layers(
    parts: _Parts, scale: "_Scale", linears: Sequence[Mapping[str, tuple[int, int]]], dtype: torch.dtype
) -> tuple[LoraLayer, ...]:
    """Returns the updates of a model of `transformers`, whose linear modules are not fused.

    linears: for each layer, a mapping from the name of each module that can have an update to its number of outputs
        and its number of inputs.
    """
    for layer, module, _ in parts:
        if module not in linears[layer]:
            served = ", ".join(sorted(linears[layer])) or "no module"
            raise AdapterNotLoadable(f"LoRA is served on {served} of layer {layer}, got {module}")
    return tuple(
        ModuleUpdates(
            modules={
                name: weight
                for name, (rows, columns) in modules.items()
                if (weight := _fused(index, columns, {name: rows}, parts, scale, dtype)) is not None
            }
        )
        for index, modules in enumerate(linears)
    )


def _fused_layers(parts: _Parts, scale: "_Scale", config: ModelConfig, dtype: torch.dtype) -> tuple[LoraLayer, ...]:
    heads, kv_heads = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    H, intermediate = config.hidden_size, config.intermediate_size
    products = {
        "qkv": (H, {"q_proj": heads, "k_proj": kv_heads, "v_proj": kv_heads}),
        "output": (heads, {"o_proj": H}),
    }
    if config.mixture is None:
        products["gate_up"] = (H, {"gate_proj": intermediate, "up_proj": intermediate})
        products["down"] = (intermediate, {"down_proj": H})
    served = {module for _, modules in products.values() for module in modules}
    if others := {module for _, module, _ in parts} - served:
        raise AdapterNotLoadable(f"LoRA is served on {', '.join(sorted(served))}, got {', '.join(sorted(others))}")
    fused = (
        {name: _fused(index, columns, modules, parts, scale, dtype) for name, (columns, modules) in products.items()}
        for index in range(config.num_layers)
    )
    return tuple(
        LoraLayer(qkv=layer["qkv"], output=layer["output"], gate_up=layer.get("gate_up"), down=layer.get("down"))
        for layer in fused
    )


class _Scale:
    """The factor alpha / r (with `use_rslora` alpha / sqrt(r)) on an update of rank r, as in peft."""

    def __init__(self, values: dict[str, Any]) -> None:
        self._alpha = values.get("lora_alpha", 8)
        self._uses_rslora = values.get("use_rslora", False)

    def of(self, rank: int) -> float:
        return float(self._alpha / (rank**0.5 if self._uses_rslora else rank))


def _refuse_more_than_lora(values: dict[str, Any]) -> None:
    if values.get("peft_type") != "LORA":
        raise AdapterNotLoadable(f"peft_type must be LORA, got {values.get('peft_type')!r}")
    allowed_values: dict[str, tuple[Any, ...]] = {
        "bias": ("none",),
        "use_dora": (False, None),
        "modules_to_save": (None, []),
        "fan_in_fan_out": (False,),
    }
    allowed_values |= {"alpha_pattern": ({}, None), "rank_pattern": ({}, None), "lora_bias": (False,)}
    allowed_values |= {"layer_replication": (None,), "trainable_token_indices": (None,)}
    for name, allowed in allowed_values.items():
        if name in values and values[name] not in allowed:
            raise AdapterNotLoadable(f"{name} must be {allowed[0]!r} to be served, got {values[name]!r:.80}")


def _fused(
    layer: int,
    columns: int,
    modules: dict[str, int],
    parts: _Parts,
    scale: _Scale,
    dtype: torch.dtype,
) -> LoraWeight | None:
    """Merges the updates of `modules` into one update of one weight.

    If there are several modules, `build_weights` (engine/models/weights.py) has fused their weights into this weight.

    The matrices A are concatenated to [R, K], and the matrices B form a block-diagonal matrix [N, R]. R is the sum of
    the ranks.

    columns: K, the number of inputs.
    modules: the number of outputs of each module; their sum is N.
    """
    present = {module: rows for module, rows in modules.items() if (layer, module, "A") in parts}
    if not present:
        return None
    ranks = {module: _checked_rank(layer, module, columns, rows, parts) for module, rows in present.items()}
    down = torch.cat([parts[layer, module, "A"] for module in present])  # [R, K]
    up = down.new_zeros(sum(modules.values()), down.shape[0])  # [N, R]
    row = column = 0
    for module, rows in modules.items():
        if module in present:
            up[row : row + rows, column : column + ranks[module]] = parts[layer, module, "B"] * scale.of(ranks[module])
            column += ranks[module]
        row += rows
    if down.shape[0] % 2:  # the bfloat16 kernels need an even rank
        down = torch.nn.functional.pad(down, (0, 0, 0, 1))
        up = torch.nn.functional.pad(up, (0, 1))
    return LoraWeight(pack(down.to(dtype)), pack(up.to(dtype)))


def _checked_rank(layer: int, module: str, columns: int, rows: int, parts: _Parts) -> int:
    """Returns the rank of a module's update. Raises: AdapterNotLoadable: A and B don't fit the module or each other."""
    down, up = parts[layer, module, "A"], parts[layer, module, "B"]
    rank = down.shape[0]
    if tuple(down.shape) != (rank, columns) or tuple(up.shape) != (rows, rank):
        shapes = f"A {list(down.shape)} and B {list(up.shape)}"
        raise AdapterNotLoadable(
            f"{module} of layer {layer} must have A [r, {columns}] and B [{rows}, r], got {shapes}"
        )
    if rank > _MAX_RANK:
        raise AdapterNotLoadable(f"rank must be at most {_MAX_RANK}, got {rank} at {module} of layer {layer}")
    return rank
