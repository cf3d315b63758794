"""EAGLE-3 in the layout of the package `speculators`."""

from collections.abc import Mapping
from typing import Any

from workers.exports.artifact import Artifact, ArtifactKind
from workers.exports.checks import check_offsets, check_sizes, check_taps
from workers.exports.errors import invalid
from workers.exports.folder import integer, section
from workers.exports.shapes import MAX_COUNT, Layer, TensorShapes, check_tensors
from workers.exports.target import Target


def tensor_shapes(config: Mapping[str, Any]) -> TensorShapes:
    """Returns the shapes of the drafter's tensors. config: the contents of config.json."""
    values = config.get("transformer_layer_config", config)
    layer = Layer.read({**values, "model_type": "llama"})
    if layer.query_bias or values.get("mlp_bias"):
        raise invalid("EAGLE-3 layers with biases are not served")
    H, draft_vocab_size = layer.hidden, integer(config, "draft_vocab_size", layer.vocab)
    target = H if config.get("target_hidden_size") is None else integer(config, "target_hidden_size")
    taps = config.get("eagle_aux_hidden_state_layer_ids") or [0, 0, 0]
    if not isinstance(taps, list) or len(taps) > MAX_COUNT:
        raise invalid(f"tapped layers must be a list of at most {MAX_COUNT}, got {taps!r:.80}")
    required = layer.shapes("layers.0.", read_width=2 * H) | {
        "layers.0.hidden_norm.weight": (H,),
        "fc.weight": (H, len(taps) * target),
        "norm.weight": (H,),
        "lm_head.weight": (draft_vocab_size, H),
    }
    if config.get("norm_before_fc"):
        required["input_norm.weight"] = (len(taps) * target,)
    if config.get("fc_norm"):
        required |= {f"fc_norm.{tap}.weight": (target,) for tap in range(len(taps))}
    if draft_vocab_size < layer.vocab:
        required["d2t"] = (draft_vocab_size,)
    return TensorShapes(
        required, {"embed_tokens.weight": (layer.vocab, H), "d2t": (draft_vocab_size,), "t2d": (layer.vocab,)}
    )


def _check_eagle3(artifact: Artifact, target: Target) -> None:
    layer = section(artifact.config, "transformer_layer_config")
    check_tensors(artifact.tensors, tensor_shapes(artifact.config))
    hidden = artifact.config.get("target_hidden_size") or integer(layer, "hidden_size")
    check_sizes(target, hidden=hidden, vocab=integer(layer, "vocab_size"))
    if (taps := artifact.config.get("eagle_aux_hidden_state_layer_ids")) is not None:
        check_taps(taps, target)
    check_offsets(artifact.tensors, target)


KIND = ArtifactKind(check=_check_eagle3, speculators_types=("eagle3",))
