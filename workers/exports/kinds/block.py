"""Block drafters, DFlash and DSpark, in the layout of the package `speculators`."""

from collections.abc import Mapping
from typing import Any

from workers.exports.artifact import Artifact, ArtifactKind
from workers.exports.checks import check_offsets, check_sizes, check_taps
from workers.exports.errors import invalid
from workers.exports.folder import integer, section
from workers.exports.shapes import MAX_COUNT, Layer, Shape, TensorShapes, check_tensors
from workers.exports.target import Target


def tensor_shapes(config: Mapping[str, Any]) -> TensorShapes:
    """Returns the shapes of the drafter's tensors. config: the contents of config.json."""
    values = config["transformer_layer_config"]
    layer, num_layers = (
        Layer.read({"model_type": "qwen3", **values}),
        integer(values, "num_hidden_layers", most=MAX_COUNT),
    )
    if not layer.head_norms:
        raise invalid("transformer_layer_config.model_type must be qwen3 for a block drafter")
    H, draft_vocab_size = layer.hidden, integer(config, "draft_vocab_size", layer.vocab)
    taps = config.get("aux_hidden_state_layer_ids")
    if not isinstance(taps, list) or len(taps) > MAX_COUNT:
        raise invalid(f"aux_hidden_state_layer_ids must be a list of at most {MAX_COUNT} layers, got {taps!r:.80}")
    required = {"fc.weight": (H, len(taps) * H), "hidden_norm.weight": (H,), "norm.weight": (H,)}
    for index in range(num_layers):
        required |= layer.shapes(f"layers.{index}.", read_width=H)
    if config.get("speculators_model_type") == "dspark":
        required |= _dspark_heads(config, layer, draft_vocab_size)
    if draft_vocab_size < layer.vocab:
        required["d2t"] = (draft_vocab_size,)
    optional: dict[str, Shape] = {"embed_tokens.weight": (layer.vocab, H), "lm_head.weight": (draft_vocab_size, H)}
    return TensorShapes(required, optional | {"d2t": (draft_vocab_size,), "t2d": (layer.vocab,)})


def _dspark_heads(config: Mapping[str, Any], layer: Layer, draft_vocab_size: int) -> dict[str, Shape]:
    rank = integer(config, "markov_rank", 256, least=0)
    shapes: dict[str, Shape] = {}
    if rank:
        shapes |= {
            "markov_head.markov_w1.weight": (layer.vocab, rank),
            "markov_head.markov_w2.weight": (draft_vocab_size, rank),
        }
    if rank and config.get("markov_head_type") == "gated":
        shapes |= {
            "markov_head.gate_proj.weight": (rank, layer.hidden + rank),
            "markov_head.gate_proj.bias": (rank,),
        }
    if config.get("enable_confidence_head", True):
        width = layer.hidden + rank * bool(config.get("confidence_head_with_markov", True))
        shapes |= {"confidence_head.proj.weight": (1, width), "confidence_head.proj.bias": (1,)}
    return shapes


def _check_block(artifact: Artifact, target: Target) -> None:
    layer = section(artifact.config, "transformer_layer_config")
    check_tensors(artifact.tensors, tensor_shapes(artifact.config))
    check_sizes(target, hidden=integer(layer, "hidden_size"), vocab=integer(layer, "vocab_size"))
    check_taps(artifact.config.get("aux_hidden_state_layer_ids"), target)
    check_offsets(artifact.tensors, target)
    integer(artifact.config, "block_size", most=MAX_COUNT)
    if integer(artifact.config, "mask_token_id", least=0) >= target.vocab_size:
        raise invalid(f"mask_token_id must be below {target.vocab_size}")


KIND = ArtifactKind(check=_check_block, speculators_types=("dflash", "dspark"))
