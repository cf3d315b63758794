"""vLLM's format of Medusa heads, `MedusaModel`, with a copy of the model's lm_head that all heads share.

The tensors are blocks.{head}.layers.{layer}.{weight,bias} and lm_head.weight [V, H], with vocabulary V and hidden size
H.

The lm_head rows of tokens outside the draft vocabulary are zero. The logit of these tokens is then 0, which is almost
never the maximum. The format also has a tensor `token_map` for a draft vocabulary, but vLLM 0.32 cannot load it.

Source: vLLM, model_executor/models/medusa.py and transformers_utils/configs/medusa.py.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from workers.exports.artifact import WEIGHTS_FILE, Artifact
from workers.exports.errors import invalid, unsupported
from workers.exports.folder import integer, read_json, read_weights, write_json
from workers.exports.target import Target
from workers.exports.tensors import Stored, integers, write_tensors

NAME = "medusa"
KINDS = ("medusa",)
_LAYER = re.compile(r"blocks\.(\d+)\.layers\.(\d+)\.(weight|bias)")
_ARTIFACT_LAYER = re.compile(r"(\d+)\.(\d+)\.linear\.(weight|bias)")  # also the names in older vLLM files


def export(artifact: Artifact, target: Target, folder: Path) -> None:
    """Raises: ExchangeError: the heads read the last token or have untied lm_heads, which vLLM does not support."""
    heads = artifact.heads
    check(heads)
    tensors: dict[str, Stored] = {}
    for name, tensor in artifact.tensors.items():
        if match := _ARTIFACT_LAYER.fullmatch(name):
            tensors[f"blocks.{match[1]}.layers.{match[2]}.{match[3]}"] = tensor
    tensors["lm_head.weight"] = target.lm_head().only_rows(artifact.draft_vocab)
    values = {
        "architectures": ["MedusaModel"],
        "model_type": "medusa",
        "hidden_size": heads["hidden_size"],
        "vocab_size": target.vocab_size,
        "truncated_vocab_size": target.vocab_size,
        "num_heads": heads["num_heads"],
        "num_hidden_layers": heads["num_layers"],
        "medusa_fc_bias": True,
        "original_lm_head": True,
    }
    write_json(folder / "config.json", values)
    write_tensors(folder / WEIGHTS_FILE, tensors)


def check(heads: Mapping[str, Any], form: str = "vLLM's Medusa") -> None:
    """Raises: ExchangeError: the format `form` does not support the heads.

    heads: the configuration of trained heads, or the hyperparameters of heads that are still to be trained.
    """
    if heads.get("token_input"):
        raise unsupported(f"heads in {form} read the hidden state alone; train with token_input false to export yours")
    if not heads.get("tied", True):
        raise unsupported(f"{form} shares one lm_head among the heads; train with tied true to export them")


def read(folder: Path, target: Target) -> Artifact:
    """Raises: ExchangeError."""
    values, weights = read_json(folder / "config.json"), read_weights(folder)
    if "MedusaModel" not in (values.get("architectures") or ()) and values.get("model_type") != "medusa":
        raise invalid("config.json must have architectures ['MedusaModel'] or model_type medusa")
    if not values.get("original_lm_head"):
        raise invalid("only heads that share the model's lm_head (original_lm_head) can be imported")
    tensors = {}
    for name, tensor in weights.items():
        name = name.removeprefix("medusa_heads.")
        if match := _LAYER.fullmatch(name) or _ARTIFACT_LAYER.fullmatch(name):
            tensors[f"{match[1]}.{match[2]}.linear.{match[3]}"] = tensor
        elif name not in ("token_map", "lm_head.weight", "lm_heads.0.weight"):
            raise invalid(f"tensor {name:.120} is not part of Medusa heads")
    return heads_artifact(
        tensors,
        _vocab(weights, target),
        target,
        num_heads=integer(values, "num_heads"),
        num_layers=integer(values, "num_hidden_layers", 1),
    )


def _vocab(weights: dict[str, Stored], target: Target) -> Stored:
    """Returns the draft vocabulary: `token_map`, else the tokens whose lm_head rows are not zero, else all tokens.

    Raises: ExchangeError.
    """
    if "token_map" in weights:
        return weights["token_map"]
    head = weights.get("lm_head.weight") or weights.get("lm_heads.0.weight")
    if head is None:
        return integers(range(target.vocab_size))
    if head.shape != (target.vocab_size, target.hidden_size):
        raise invalid(f"lm_head must be {[target.vocab_size, target.hidden_size]}, got {list(head.shape)}")
    if not (rows := head.nonzero_rows()):
        raise invalid("lm_head is zero throughout")
    return integers(rows)


def heads_artifact(
    tensors: dict[str, Stored], vocab: Stored, target: Target, *, num_heads: int, num_layers: int
) -> Artifact:
    """Returns an artifact of heads that share the model's lm_head. Missing biases are added as zeros."""
    H = target.hidden_size
    tensors = dict(tensors)
    for name in list(tensors):
        zeros = Stored(dtype="F32", shape=(H,), data=bytes(4 * H))
        tensors.setdefault(f"{name.rpartition('.')[0]}.bias", zeros)
    sizes = {
        "hidden_size": H,
        "num_heads": num_heads,
        "num_layers": num_layers,
        "draft_vocab_size": len(vocab.integers()),
        "tied": True,
        "token_input": False,
    }
    config = {
        "base_model_name_or_path": target.name,
        "medusa_num_heads": num_heads,
        "medusa_num_layers": num_layers,
        "version": "2",
        "slipstream": sizes,
    }
    return Artifact(kind="medusa", config=config, tensors=tensors | {"draft_vocab": vocab})
