"""SpecForge's format, which SGLang reads: a Hugging Face folder that contains only the drafter.

    EAGLE-3  has architectures LlamaForCausalLMEagle3, a Llama configuration of one layer, and tensors midlayer.*
    DFlash   has dflash_config {...} and a Qwen3 configuration; DSpark and JetSpec have the same format. Block drafters
             can only be imported, because ours have a draft vocabulary, which the format does not support

A tap is an intermediate hidden state of the target that the drafter reads: the output of one layer, which is the input
of the next. SpecForge numbers a tap by the layer that outputs it, our artifacts by the layer that reads it. vLLM reads
SpecForge's numbers as if they were ours. An export therefore omits the default taps (the inputs of the layers 2, L / 2
and L - 3 of L layers), which are the same in all engines.

Source: https://github.com/sgl-project/SpecForge (configs/); SGLang, models/llama_eagle3.py.
"""

from pathlib import Path
from typing import Any

from workers.exports.artifact import WEIGHTS_FILE, Artifact
from workers.exports.errors import invalid, unsupported
from workers.exports.folder import integer, read_json, read_weights, section, write_json
from workers.exports.target import Target
from workers.exports.tensors import write_tensors

NAME = "specforge"
KINDS = ("eagle3",)
_ARCHITECTURE = "LlamaForCausalLMEagle3"
_OUR_PREFIX, _THEIR_PREFIX = "layers.0.", "midlayer."  # of the names of the layer's tensors
_OPTIONS = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")
_TAPS = "eagle_aux_hidden_state_layer_ids"
_EAGLE_KEYS = frozenset({*_OPTIONS, _TAPS, "architectures", "draft_vocab_size", "target_hidden_size", "eagle_config"})
_BLOCK_KEYS = frozenset(
    {
        *("architectures", "dflash_config", "block_size", "mask_token_id", "num_target_layers", "target_layer_ids"),
        *("num_anchors", "markov_rank", "markov_head_type", "enable_confidence_head", "confidence_head_with_markov"),
        "confidence_head_alpha",
    }
)


def export(artifact: Artifact, target: Target, folder: Path) -> None:
    values = artifact.config
    config = section(values, "transformer_layer_config") | {"architectures": [_ARCHITECTURE], "num_hidden_layers": 1}
    config |= {name: bool(values.get(name)) for name in _OPTIONS}
    config |= {name: values[name] for name in ("draft_vocab_size", "target_hidden_size") if values.get(name)}
    taps = values.get(_TAPS)
    if taps is not None and max(taps) >= target.num_layers:
        raise unsupported(
            "the drafter reads the output of the last layer, which SGLang does not provide: train it with export_as "
            f"{NAME!r}, or export it as 'speculators'"
        )
    if taps is not None and taps != default_taps(target.num_layers):
        config["eagle_config"] = {_TAPS: [tap - 1 for tap in taps], "use_aux_hidden_state": True}
    write_json(folder / "config.json", config)
    write_tensors(
        folder / WEIGHTS_FILE,
        {name.replace(_OUR_PREFIX, _THEIR_PREFIX, 1): tensor for name, tensor in artifact.tensors.items()},
    )


def default_taps(num_layers: int) -> list[int]:
    """Returns the taps of engine.drafters.eagle3_config.default_taps, which this package must not import."""
    return [min(2, num_layers), num_layers // 2, max(0, num_layers - 3)]


def read(folder: Path, target: Target) -> Artifact:
    """Raises: ExchangeError."""
    values = read_json(folder / "config.json")
    if _ARCHITECTURE in (values.get("architectures") or ()):
        return _read_eagle3(values, folder, target)
    if "dflash_config" in values or "target_layer_ids" in values:
        return _read_block(values, folder)
    raise invalid(f"config.json must have architectures [{_ARCHITECTURE!r}] or a dflash_config")


def _read_eagle3(values: dict[str, Any], folder: Path, target: Target) -> Artifact:
    if integer(values, "num_hidden_layers", 1) != 1:
        raise invalid("an EAGLE-3 drafter has one layer")
    vocab = integer(values, "vocab_size")
    taps = _input_layers((values.get("eagle_config") or {}).get(_TAPS))
    layer = {name: value for name, value in values.items() if name not in _EAGLE_KEYS}
    config = {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "transformer_layer_config": layer | {"model_type": "llama"},
        "draft_vocab_size": integer(values, "draft_vocab_size", vocab),
        "target_hidden_size": values.get("target_hidden_size") or integer(values, "hidden_size"),
        _TAPS: default_taps(target.num_layers) if taps is None else taps,
        **{name: bool(values.get(name)) for name in _OPTIONS},
        "speculators_config": _proposal("eagle3", 5, target.verifier),
    }
    tensors = {name.replace(_THEIR_PREFIX, _OUR_PREFIX, 1): tensor for name, tensor in read_weights(folder).items()}
    return Artifact(kind="eagle3", config=config, tensors=tensors)


def _read_block(values: dict[str, Any], folder: Path) -> Artifact:
    dflash = values.get("dflash_config") or {}
    merged = values | dflash
    kind = dflash.get("projector_type") or ("dspark" if "num_anchors" in values else "dflash")
    if kind not in ("dflash", "dspark"):
        raise invalid(f"projector_type must be dflash or dspark, got {kind!r:.40}")
    layer: dict[str, Any] = {"model_type": "qwen3"}
    layer |= {name: value for name, value in values.items() if name not in _BLOCK_KEYS}
    causal = dflash.get("causal", dflash.get("causal_head"))
    if causal is not None:
        layer["is_causal"] = bool(causal)
    if dflash.get("use_swa") or dflash.get("swa_window_size"):
        raise invalid("dflash_config with a sliding window of its own (use_swa) can't be imported; use layer_types")
    rank = integer(merged, "markov_rank", 0, least=0)
    confidence = bool(merged.get("enable_confidence_head", merged.get("confidence_head_alpha", 0.0) > 0.0))
    size = integer(merged, "block_size")
    config = {
        "architectures": ["DSparkSpeculator" if rank or confidence else "DFlashSpeculator"],
        "speculators_model_type": "dspark" if rank or confidence else "dflash",
        "transformer_layer_config": layer,
        "draft_vocab_size": integer(values, "vocab_size"),
        "block_size": size,
        "aux_hidden_state_layer_ids": _input_layers(merged.get("target_layer_ids")),
        "mask_token_id": integer(merged, "mask_token_id", least=0),
        "sample_from_anchor": kind == "dspark",
        "markov_rank": rank,
        "markov_head_type": merged.get("markov_head_type", "vanilla"),
        "enable_confidence_head": confidence,
        "confidence_head_with_markov": confidence and bool(merged.get("confidence_head_with_markov")),
        "speculators_config": _proposal(kind, size - (kind == "dflash"), {"architectures": []}),
    }
    weights = read_weights(folder)
    tensors = {name.removeprefix("logit_head."): t for name, t in weights.items() if not name.startswith("rotary_emb.")}
    return Artifact(kind="block", config=config, tensors=tensors)


def _input_layers(output_layers: object) -> list[int] | None:
    """Converts the numbers of taps: from layers that output them (SpecForge) to layers that read them, one higher.

    Raises: ExchangeError.
    """
    if output_layers is None:
        return None
    if not isinstance(output_layers, list) or not all(type(layer) is int for layer in output_layers):
        raise invalid(f"tapped layers must be a list of integers, got {output_layers!r:.80}")
    return [layer + 1 for layer in output_layers]


def _proposal(algorithm: str, depth: int, verifier: dict[str, Any]) -> dict[str, Any]:
    method = {"proposal_type": "greedy", "speculative_tokens": depth, "verifier_accept_k": 1, "accept_tolerance": 0.0}
    return {
        "algorithm": algorithm,
        "default_proposal_method": "greedy",
        "proposal_methods": [method],
        "verifier": verifier,
    }
