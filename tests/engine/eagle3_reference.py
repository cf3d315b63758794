"""A reference implementation of EAGLE-3 that recomputes all positions in float32, and small random EAGLE-3 modules.

Shape letters: T positions, D head dimension, H hidden size. `g` [T, H] is the drafter's input state at each position.
"""

from typing import Any

import torch

from engine.drafters.eagle3_config import Eagle3Config
from engine.drafters.eagle3_module import Eagle3
from engine.models.base import Model


def make_config(**options: Any) -> Eagle3Config:
    values: dict[str, Any] = {
        "hidden_size": 64,
        "target_hidden_size": 64,
        "intermediate_size": 96,
        "num_heads": 4,
        "num_kv_heads": 2,
        "head_dim": 16,
        "vocab_size": 259,
        "draft_vocab_size": 100,
        "norm_eps": 1e-5,
        "max_positions": 1024,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "tap_layers": (1, 2, 4),
    }
    return Eagle3Config(**values | options)


def make_module(config: Eagle3Config, *, own_embedding: bool = False) -> Eagle3:
    torch.manual_seed(0)
    vocab = torch.randperm(config.vocab_size)[: config.draft_vocab_size].sort().values
    module = Eagle3(config, vocab, own_embedding=own_embedding)
    for name, parameter in module.named_parameters():
        if "norm" in name:
            torch.nn.init.uniform_(parameter, 0.5, 1.5)
        else:
            torch.nn.init.normal_(parameter, std=0.15)
    return module.bfloat16().float()  # rounded to bfloat16, as in a saved file


def reference_chain(module: Eagle3, model: Model, tokens: list[int], ranks: list[int]) -> list[tuple[int, float]]:
    """Drafts a chain. At each depth, it takes the token with the given rank, where rank 0 is the likeliest token.

    Returns: each drafted token with the probability of the whole path up to this token.
    """
    chain: list[tuple[int, float]] = []
    taps = model.hidden_states(torch.tensor(tokens[:-1]), module.config.taps_of(4)).taps
    assert taps is not None
    g = module.fuse(taps.float())  # the fused tapped states, and later the drafter's own outputs
    for rank in ranks:
        out = reference_layer(module, g, model.weights.embedding[torch.tensor(tokens[1:])].float())
        read, fed_back = module.split(out)  # what the LM head reads, and what becomes the next input state
        probabilities, best = module.lm_head(read[-1]).softmax(-1).sort(descending=True)
        tokens = [*tokens, int(module.draft_vocab[best[rank]])]
        chain.append((tokens[-1], float(probabilities[rank]) * (chain[-1][1] if chain else 1.0)))
        g = torch.cat([g, fed_back[-1:]])
    return chain


def reference_layer(module: Eagle3, g: torch.Tensor, embeddings: torch.Tensor) -> torch.Tensor:
    """Returns the output of the drafter's layer [T, H], computed with full causal attention."""
    config, attention = module.config, module.layer.self_attn
    residual, x = module.read(g, embeddings)
    T, D = x.shape[0], config.head_dim
    angles = torch.outer(torch.arange(T).float(), 10000.0 ** -(torch.arange(0, D, 2).float() / D))

    def heads(projected: torch.Tensor, *, rotated: bool) -> torch.Tensor:
        h = projected.view(T, -1, D).transpose(0, 1)  # [heads, T, D]
        first, second = h.chunk(2, dim=-1)  # first[i] and second[i] form a rotary pair
        cosine, sine = angles.cos(), angles.sin()
        return torch.cat((first * cosine - second * sine, second * cosine + first * sine), dim=-1) if rotated else h

    attended = torch.nn.functional.scaled_dot_product_attention(
        heads(attention.q_proj(x), rotated=True).unsqueeze(0),
        heads(attention.k_proj(x), rotated=True).unsqueeze(0),
        heads(attention.v_proj(x), rotated=False).unsqueeze(0),
        is_causal=True,
        enable_gqa=True,
    )
    return module.finish(residual, attended[0].transpose(0, 1).flatten(1))
