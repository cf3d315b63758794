"""The format of the package `speculators`, which vLLM reads: EAGLE-3, DFlash and DSpark, MTP.

Our artifacts of these kinds have the same tensors. They also number taps (the target's hidden states that a drafter
reads) in the same way: tap i is the input of layer i. An export therefore only changes config.json. It adds the name of
the target model, and the default values that vLLM does not know.

Source: https://github.com/vllm-project/speculators (models/*/config.py); vLLM, transformers_utils/configs/speculators.
"""

from pathlib import Path

from workers.exports.artifact import WEIGHTS_FILE, Artifact, artifact_kind
from workers.exports.errors import invalid
from workers.exports.folder import integer, read_json, read_weights, section, write_json
from workers.exports.target import Target
from workers.exports.tensors import write_tensors
from workers.kinds import TRAINED_KINDS

NAME = "speculators"
_KIND_OF = {name: kind for kind in TRAINED_KINDS for name in artifact_kind(kind).speculators_types}
KINDS = tuple(dict.fromkeys(_KIND_OF.values()))
# vLLM reads a layer's configuration without adding the defaults of transformers.
_DEFAULTS = {"hidden_act": "silu", "attention_bias": False, "attention_dropout": 0.0, "tie_word_embeddings": False}
# Prefixes of tensors that an import ignores: copies of the target's tensors, and the computed rotary tables.
_COPIES = ("verifier_lm_head.", "verifier_norm.", "rotary_emb.")


def export(artifact: Artifact, target: Target, folder: Path) -> None:
    layer = _DEFAULTS | section(artifact.config, "transformer_layer_config")
    config = artifact.config | {"speculators_version": "0.9.0", "transformer_layer_config": layer}
    config["speculators_config"] = section(config, "speculators_config") | {"verifier": target.verifier}
    config.pop("prompt_tokens", None)  # other engines cannot draft tokens of the prompt outside the stored vocabulary
    if artifact.kind == "block":
        # If the layer's configuration has no `is_causal`, vLLM applies this key to all layers, even without a window.
        config["sliding_window_non_causal"] = not layer.get("is_causal", False)
    write_json(folder / "config.json", config)
    write_tensors(folder / WEIGHTS_FILE, artifact.tensors)


def read(folder: Path, target: Target) -> Artifact:
    """Raises: ExchangeError."""
    config = read_json(folder / "config.json")
    kind = _KIND_OF.get(str(config.get("speculators_model_type")))
    if kind is None:
        value = config.get("speculators_model_type")
        raise invalid(f"speculators_model_type must be one of {', '.join(_KIND_OF)}, got {value!r:.40}")
    layer = section(config, "transformer_layer_config")
    ignored = (*_COPIES, "embed_tokens.", "lm_head.") if kind == "mtp" else _COPIES
    tensors = {
        name.removeprefix("logit_head."): tensor
        for name, tensor in read_weights(folder).items()
        if not name.startswith(ignored)
    }
    if kind == "eagle3":
        config["draft_vocab_size"] = integer(config, "draft_vocab_size", integer(layer, "vocab_size"))
    if kind == "mtp" and integer(config, "num_nextn_predict_layers", 1) != 1:
        raise invalid("num_nextn_predict_layers must be 1")
    return Artifact(kind=kind, config=config, tensors=tensors)
