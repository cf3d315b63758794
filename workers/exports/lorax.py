"""LoRAX's adapter folders: Medusa heads of version 2, alone or with a LoRA adapter (Turbo LoRA).

    config.json                  has medusa_num_heads and further sizes
    adapter_config.json          peft's configuration; only with a LoRA adapter
    adapter_model.safetensors    has {head}.0.linear.{weight,bias}, and with a LoRA adapter base_model.model.*

LoRAX's heads use all rows of the model's lm_head, so the draft vocabulary is lost in an export.

Source: https://github.com/predibase/lorax, server/lorax_server/adapters (medusa.py, medusa_lora.py).
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from workers.exports import medusa
from workers.exports.artifact import ADAPTER_FILE, Artifact, is_adapter_tensor
from workers.exports.errors import invalid, unsupported
from workers.exports.folder import integer, read_json, read_weights, write_json
from workers.exports.target import Target
from workers.exports.tensors import integers, write_tensors

NAME = "lorax"
KINDS = ("medusa", "turbo_lora")


def export(artifact: Artifact, target: Target, folder: Path) -> None:
    """Raises: ExchangeError: version 2 of LoRAX's format for Medusa heads does not support these heads."""
    check(artifact.heads)
    values = {
        "base_model_name_or_path": target.name,
        "medusa_num_heads": artifact.heads["num_heads"],
        "medusa_num_layers": 1,
        "version": "2",
    }
    write_json(folder / "config.json", values)
    if artifact.adapter is not None:
        write_json(folder / "adapter_config.json", artifact.adapter | {"base_model_name_or_path": target.name})
    tensors = {name: tensor for name, tensor in artifact.tensors.items() if name != "draft_vocab"}
    write_tensors(folder / ADAPTER_FILE, tensors)


def check(heads: Mapping[str, Any]) -> None:
    """Raises: ExchangeError: the format does not support the heads.

    heads: the sizes of trained heads (num_heads, num_layers and so on), or the hyperparameters before training.
    """
    medusa.check(heads, "version 2 of LoRAX's Medusa format")
    if heads["num_layers"] != 1:
        raise unsupported(
            "LoRAX's Medusa format, version 2, supports one layer per head; train with num_layers 1 to export it"
        )


def read(folder: Path, target: Target) -> Artifact:
    """Raises: ExchangeError."""
    values, weights = read_json(folder / "config.json"), read_weights(folder)
    num_heads = integer(values, "medusa_num_heads")
    if integer(values, "medusa_num_layers", 1) != 1 or any(name.endswith(".1.weight") for name in weights):
        raise invalid("only version 2 can be imported; its heads have one layer and share the model's lm_head")
    heads = {name: tensor for name, tensor in weights.items() if not is_adapter_tensor(name)}
    result = medusa.heads_artifact(heads, integers(range(target.vocab_size)), target, num_heads=num_heads, num_layers=1)
    lora = {name: tensor for name, tensor in weights.items() if is_adapter_tensor(name)}
    if not (folder / "adapter_config.json").exists():
        return replace(result, tensors=result.tensors | lora)
    adapter = read_json(folder / "adapter_config.json")
    return replace(result, kind="turbo_lora", tensors=result.tensors | lora, adapter=adapter)
