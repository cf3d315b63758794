"""Medusa heads. The functions also serve for the kind turbo_lora, which adds a LoRA adapter."""

from collections.abc import Mapping
from typing import Any

from workers.exports.artifact import ADAPTER_FILE, HEADS_FILE, VOCAB_FILE, Artifact, ArtifactKind, is_adapter_tensor
from workers.exports.checks import check_sizes, check_vocab
from workers.exports.errors import invalid
from workers.exports.folder import integer
from workers.exports.shapes import MAX_COUNT, Shape, TensorShapes, check_tensors
from workers.exports.target import Target


def tensor_shapes(config: Mapping[str, Any]) -> TensorShapes:
    """Returns the shapes of the heads' tensors. config: the object `slipstream` of config.json."""
    H, draft_vocab_size = integer(config, "hidden_size"), integer(config, "draft_vocab_size")
    layers = integer(config, "num_layers", most=MAX_COUNT)
    required: dict[str, Shape] = {"draft_vocab": (draft_vocab_size,)}
    for head in range(integer(config, "num_heads", most=MAX_COUNT)):
        for number in range(layers):
            required |= {f"{head}.{number}.linear.weight": (H, H), f"{head}.{number}.linear.bias": (H,)}
        if config.get("token_input"):
            required[f"{head}.0.token.weight"] = (H, H)
        if not config.get("tied", True):
            required[f"{head}.{layers}.weight"] = (draft_vocab_size, H)
    return TensorShapes(required)


def check_heads(artifact: Artifact, target: Target) -> None:
    heads = {name: tensor for name, tensor in artifact.tensors.items() if not is_adapter_tensor(name)}
    check_tensors(heads, tensor_shapes(artifact.heads))
    check_sizes(target, hidden=integer(artifact.heads, "hidden_size"), vocab=target.vocab_size)
    check_vocab(artifact.draft_vocab, target)
    if (artifact.kind == "turbo_lora") != (len(heads) < len(artifact.tensors)):
        raise invalid("the folder must have both adapter_config.json and LoRA tensors, or neither")


def file_of(tensor: str) -> str:
    if tensor == "draft_vocab":
        return VOCAB_FILE
    return ADAPTER_FILE if is_adapter_tensor(tensor) else HEADS_FILE


def _matches(config: Mapping[str, Any], *, has_adapter: bool) -> bool:
    return "medusa_num_heads" in config and not has_adapter


KIND = ArtifactKind(check=check_heads, matches=_matches, file_of=file_of)
