"""Checks a LoRA adapter before anything loads it. The engine can serve every adapter that passes the check.

Only plain LoRA on the linear layers of a decoder, in peft's format, is accepted. An adapter with other features (DoRA,
biases, whole modules) is refused, because ignoring these features would change its output. Only the checked keys of the
configuration are stored, not the customer's file.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from control.models.catalog.folder import UnusableModel, check_safetensors

MAX_CONFIG_BYTES = 64 << 10
MAX_RANK = 256
_TENSOR = re.compile(
    r"base_model\.model\.model\.layers\.(?P<layer>\d{1,4})\.(?:self_attn|mlp)\.(?P<module>\w+)"
    r"\.lora_(?P<side>[AB])(?:\.default)?\.weight"
)
# Keys that change what an adapter computes, each with the values that it may have in plain LoRA.
_PLAIN: Mapping[str, tuple[Any, ...]] = {
    "bias": ("none",), "use_dora": (False, None), "modules_to_save": (None, []), "fan_in_fan_out": (False,),
    "alpha_pattern": ({}, None), "rank_pattern": ({}, None), "lora_bias": (False,), "layer_replication": (None,),
    "trainable_token_indices": (None,), "auto_mapping": (None,),
}  # fmt: skip


class UnusableAdapter(ValueError):
    """The adapter is refused. `param` is the request's parameter for the invalid file: config_file or weights_file."""

    def __init__(self, message: str, param: str) -> None:
        super().__init__(message)
        self.message = message
        self.param = param


@dataclass(frozen=True, slots=True, kw_only=True)
class Lora:
    rank: int  # the largest rank of all modules
    target_modules: list[str]
    config: dict[str, Any]  # the configuration to store


def inspect_adapter(config: bytes, weights: Path, *, model: Mapping[str, Any] | None) -> Lora:
    """Checks an adapter's adapter_config.json and its weights file.

    Args: model: the base model's config.json; None if it is not on this machine.
    Raises: UnusableAdapter.
    """
    values = _read_config(config)
    try:
        check_safetensors(weights)
    except UnusableModel as error:
        raise UnusableAdapter("The weights are not a safetensors file that can be trusted.", "weights_file") from error
    shapes = _shapes(weights)
    dimensions = None if model is None else _dimensions(model)
    ranks: dict[tuple[int, str], dict[str, int]] = {}  # {(layer, module): {"A": rank, "B": rank}}
    for name, shape in shapes.items():
        match = _TENSOR.fullmatch(name)
        if match is None or len(shape) != 2:
            message = f"The tensor {name[:120]!a} is not the LoRA of a linear layer in the decoder."
            raise UnusableAdapter(message, "weights_file")
        layer, module, is_down = int(match["layer"]), match["module"], match["side"] == "A"
        rank, width = shape if is_down else reversed(shape)  # A is [rank, input width], B is [output width, rank]
        if not 1 <= rank <= MAX_RANK:
            raise UnusableAdapter(f"{name}: the rank must be in 1..{MAX_RANK}, got {rank}", "weights_file")
        if dimensions is not None:
            _check_width(name, width, dimensions, layer=layer, module=module, is_down=is_down)
        ranks.setdefault((layer, module), {})[match["side"]] = rank
    for (layer, module), sides in ranks.items():
        if len(sides) != 2 or len(set(sides.values())) != 1:
            message = f"Layer {layer}, {module}: lora_A and lora_B must both exist and have the same rank, got {sides}"
            raise UnusableAdapter(message, "weights_file")
    modules = sorted({module for _, module in ranks})
    alpha, use_rslora = values.get("lora_alpha", 8), bool(values.get("use_rslora", False))
    rank = max(sides["A"] for sides in ranks.values())
    stored_config = {
        "peft_type": "LORA", "r": rank, "lora_alpha": alpha, "use_rslora": use_rslora, "target_modules": modules,
        "bias": "none",
    }  # fmt: skip
    return Lora(rank=rank, target_modules=modules, config=stored_config)


def _read_config(content: bytes) -> dict[str, Any]:
    def refuse(message: str) -> UnusableAdapter:
        return UnusableAdapter(message, "config_file")

    if len(content) > MAX_CONFIG_BYTES:
        raise refuse(f"adapter_config.json must have at most {MAX_CONFIG_BYTES:,} bytes, got {len(content):,}")
    try:
        values = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise refuse("adapter_config.json is not JSON.") from error
    if not isinstance(values, dict) or values.get("peft_type") != "LORA":
        raise refuse("adapter_config.json must be an object with peft_type 'LORA'.")
    for name, allowed in _PLAIN.items():
        if name in values and values[name] not in allowed:
            raise refuse(f"{name} must be {allowed[0]!r}, got {ascii(values[name])[:80]}")
    alpha = values.get("lora_alpha", 8)
    if isinstance(alpha, bool) or not isinstance(alpha, int | float) or not 0 < alpha <= 1e6:
        raise refuse(f"lora_alpha must be a number above 0, got {ascii(alpha)[:40]}")
    return values


def _shapes(weights: Path) -> dict[str, list[int]]:
    """Returns the shapes of the tensors by name. The file must have been checked."""
    with weights.open("rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    return {name: tensor["shape"] for name, tensor in header.items() if name != "__metadata__"}


@dataclass(frozen=True, slots=True)
class _Dimensions:
    num_layers: int
    widths: Mapping[str, tuple[int, int]]  # input and output width of each module


def _dimensions(model: Mapping[str, Any]) -> _Dimensions | None:
    """Returns the sizes with which an adapter must agree, or None if config.json lacks a required key.

    If the result is None, only the engine checks the adapter's widths, when it loads the adapter.
    """
    try:
        hidden, num_heads = int(model["hidden_size"]), int(model["num_attention_heads"])
        head_dim = int(model.get("head_dim") or hidden // num_heads)
        kv = int(model.get("num_key_value_heads") or num_heads) * head_dim
        inner, num_layers = int(model["intermediate_size"]), int(model["num_hidden_layers"])
    except (KeyError, TypeError, ValueError):
        return None
    q = num_heads * head_dim
    widths = {
        "q_proj": (hidden, q), "k_proj": (hidden, kv), "v_proj": (hidden, kv), "o_proj": (q, hidden),
        "gate_proj": (hidden, inner), "up_proj": (hidden, inner), "down_proj": (inner, hidden),
    }  # fmt: skip
    return _Dimensions(num_layers, widths)


def _check_width(name: str, width: int, model: _Dimensions, *, layer: int, module: str, is_down: bool) -> None:
    if layer >= model.num_layers or module not in model.widths:
        message = f"{name}: the model has {model.num_layers} layers with {', '.join(model.widths)}"
        raise UnusableAdapter(message, "weights_file")
    expected = model.widths[module][0 if is_down else 1]
    if width != expected:
        side = "input" if is_down else "output"
        message = f"{name}: the {side} width of the model's {module} is {expected}, the adapter has {width}"
        raise UnusableAdapter(message, "weights_file")
