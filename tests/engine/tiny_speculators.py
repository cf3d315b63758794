"""Block drafters and MTP modules with a few thousand weights, and a target whose next token is easy to predict."""

from typing import Any

import torch
from torch import nn

from engine.drafters.block_config import BlockConfig
from engine.drafters.block_model import BlockModel
from engine.drafters.mtp_model import Mtp, MtpConfig
from engine.models.dense import Decoder


def transformer_values(**changes: Any) -> dict[str, Any]:
    """Returns `transformer_layer_config` of the speculators layout for the target of tests.tiny_model."""
    values = {
        "model_type": "qwen3",
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "vocab_size": 259,
        "rope_theta": 500.0,
        "rms_norm_eps": 1e-5,
    }
    return values | changes


def block_values(transformer: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    """Returns config.json of a DFlash drafter in the speculators layout."""
    values = {
        "speculators_model_type": "dflash",
        "transformer_layer_config": transformer or transformer_values(),
        "draft_vocab_size": 259,
        "block_size": 5,
        "aux_hidden_state_layer_ids": [1, 2],
        "mask_token_id": 7,
    }
    return values | changes


def make_block(*, seed: int = 0, **changes: Any) -> BlockModel:
    """Makes a block drafter whose weights, also those of norms, are random and so large that every part has an effect.

    Args: changes: values of config.json.
    """
    config = BlockConfig.from_values(block_values(**changes))
    vocab = None if config.draft_vocab_size == 259 else torch.arange(3, 3 + config.draft_vocab_size)
    block = BlockModel(config, vocab)
    randomize(block, seed)
    return block


def mtp_values(**changes: Any) -> dict[str, Any]:
    """Returns config.json of an MTP module in the speculators layout. `changes`: values of the layer's config."""
    proposal = {"proposal_type": "greedy", "speculative_tokens": 4, "verifier_accept_k": 1, "accept_tolerance": 0.0}
    return {
        "speculators_model_type": "mtp",
        "transformer_layer_config": transformer_values(**changes),
        "num_nextn_predict_layers": 1,
        "speculators_config": {
            "algorithm": "mtp",
            "default_proposal_method": "greedy",
            "proposal_methods": [proposal],
            "verifier": {"name_or_path": "a/model", "architectures": ["LlamaForCausalLM"]},
        },
    }


def make_mtp(*, seed: int = 0, **changes: Any) -> Mtp:
    """Makes an MTP module with random weights as in `make_block`. Args: changes: values of the layer's config."""
    module = Mtp(MtpConfig.from_values(mtp_values(**changes)))
    randomize(module, seed)
    return module


def randomize(module: nn.Module, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(noise * parameter.shape[-1] ** -0.5 if parameter.dim() > 1 else 1.0 + 0.3 * noise)


def make_memoryless(model: Decoder) -> None:
    """Sets the outputs of all layers to zero, so that only the last token matters, and scales the logits."""
    model.weights.final_norm.mul_(6.0)
    for layer in model.weights.layers:
        for weight in (layer.output, layer.mlp.down):
            weight.data.zero_()


def next_token_logits(model: Decoder) -> torch.Tensor:
    """Returns the float32 logits [V, V] of a target after `make_memoryless`. Row v has the logits after token v."""
    embedding = model.weights.embedding.float()
    norm = model.weights.final_norm
    hidden = embedding * torch.rsqrt(embedding.pow(2).mean(-1, keepdim=True) + model.config.norm_eps) * norm
    return model.logits(hidden.to(model.dtype))
