"""The MTP module that training starts from: an earlier trained module, the module in the model's files, or a new
one."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor
from transformers import AutoConfig

from engine.drafters.mtp_layer import DensePrediction
from engine.drafters.mtp_model import Mtp, MtpConfig
from engine.errors import SpeculatorNotLoadable
from workers.hyperparameters.mtp import MtpHyperparameters
from workers.training.preparation import Preparation

_INITIAL_SCALE = 0.02  # standard deviation of initial matrices
_SCALE_ROWS = 16_384  # number of rows from which the root mean square of the target's hidden states is estimated
_LAYER_TYPES = {"mistral": "llama"}  # target's model type -> model type of the module's layer, where they differ
_MODULE_PREFIXES = ("model.mtp_layers.", "mtp_layers.")  # how names of the module's tensors begin in the model's files


def existing_module(preparation: Preparation, parameters: MtpHyperparameters) -> Mtp | None:
    """Returns the module in `preparation.initial`, else the module in the model's files, else None. It is in float32.

    Raises: SpeculatorNotLoadable: the module cannot be read, or does not fit the target.
    """
    if preparation.initial is not None:
        module = Mtp.load(preparation.initial)
        module.config = replace(module.config, num_steps=parameters.steps)
    elif (published := published_tensors(preparation.model_dir)) is not None:
        try:
            width = published["mtp_layers.0.mlp.gate_proj.weight"].shape[0]
            module = Mtp(
                _config(preparation, parameters, width),
                preparation.draft_vocab(parameters.draft_vocab_size, parameters.loop),
            )
            module.load_state_dict(published)
        except (RuntimeError, KeyError) as error:
            raise SpeculatorNotLoadable(f"the MTP module in the model's files cannot be loaded: {error}") from error
    else:
        return None
    DensePrediction(module, preparation.target)  # raises if the module does not fit the target
    return module


def new_module(preparation: Preparation, parameters: MtpHyperparameters, hidden: Tensor) -> Mtp:
    """Returns a randomly initialized module.

    hidden: [R, H], final hidden states of the target. The module's output has the same root mean square per dimension.
    """
    config = _config(
        preparation, parameters, parameters.intermediate_size or preparation.target.config.intermediate_size
    )
    module = Mtp(config, preparation.draft_vocab(parameters.draft_vocab_size, parameters.loop))
    generator = torch.Generator().manual_seed(preparation.seed)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if parameter.dim() == 2:
                parameter.normal_(std=_INITIAL_SCALE, generator=generator)
            elif name.endswith(".bias"):
                parameter.zero_()
        module.layer.final_layernorm.weight.copy_(hidden[:_SCALE_ROWS].float().square().mean(0).sqrt())
    return module


def published_tensors(model_dir: Path) -> dict[str, Tensor] | None:
    """Returns the MTP module's tensors in the model's files, with names mtp_layers.*; None if there are none."""
    tensors = {}
    for path in sorted(model_dir.glob("*.safetensors")):
        with safe_open(path, framework="pt") as source:
            for name in source.keys():  # noqa: SIM118 - no mapping
                if name.startswith(_MODULE_PREFIXES):
                    tensors[name.removeprefix("model.")] = source.get_tensor(name)
    return tensors or None


def _config(preparation: Preparation, parameters: MtpHyperparameters, intermediate_size: int) -> MtpConfig:
    """Returns a config whose layer has the shape of the target's layers."""
    target = preparation.target.config
    published = AutoConfig.from_pretrained(preparation.model_dir, trust_remote_code=False)
    transformer: dict[str, Any] = {
        "model_type": _LAYER_TYPES.get(target.model_type, target.model_type),
        "hidden_size": target.hidden_size,
        "intermediate_size": intermediate_size,
        "num_hidden_layers": 1,
        "num_attention_heads": target.num_heads,
        "num_key_value_heads": target.num_kv_heads,
        "head_dim": target.head_dim,
        "vocab_size": target.vocab_size,
        "rms_norm_eps": target.norm_eps,
        "attention_bias": bool(getattr(published, "attention_bias", False)),
        "rope_parameters": dict(published.rope_parameters),
        "max_position_embeddings": preparation.target.max_positions,
    }
    verifier = {"architectures": list(published.architectures or [])}
    values = MtpConfig(transformer=transformer, num_steps=parameters.steps, verifier=verifier).to_values()
    return MtpConfig.from_values(values)
