"""Hugging Face `generate` with our engine's weights and a static KV cache, with which it compiles the model on CUDA."""

from typing import Any

import torch
import transformers
from torch import Tensor

from engine.config import ModelConfig
from engine.models.weights import DecoderWeights


def model_over(weights: DecoderWeights, config: ModelConfig, hf_config: transformers.PretrainedConfig) -> Any:
    """Returns a transformers model whose parameters are views of our weights, except norms, which are cast copies."""
    with torch.device("meta"):
        model: Any = transformers.AutoModelForCausalLM.from_config(hf_config, dtype=weights.embedding.dtype)
    model.load_state_dict(_named(weights, config), strict=True, assign=True)
    inner = model.model
    inner.rotary_emb = type(inner.rotary_emb)(hf_config).to(weights.embedding.device)  # also moves its buffers
    return model.eval()


def _named(weights: DecoderWeights, config: ModelConfig) -> dict[str, Tensor]:
    dtype, D = weights.embedding.dtype, config.head_dim
    sizes = (config.num_heads * D, config.num_kv_heads * D, config.num_kv_heads * D)
    named = {
        "model.embed_tokens.weight": weights.embedding,
        "model.norm.weight": weights.final_norm.to(dtype),
        "lm_head.weight": weights.lm_head,
    }
    for index, layer in enumerate(weights.layers):
        base, norms = f"model.layers.{index}", layer.head_norms
        named[f"{base}.input_layernorm.weight"] = layer.input_norm.to(dtype)
        named[f"{base}.post_attention_layernorm.weight"] = layer.post_norm.to(dtype)
        parts = zip(("q_proj", "k_proj", "v_proj"), layer.qkv.data.split(sizes), strict=True)
        named |= {f"{base}.self_attn.{name}.weight": part for name, part in parts}
        named[f"{base}.self_attn.o_proj.weight"] = layer.output.data
        halves = zip(("gate_proj", "up_proj"), layer.mlp.gate_up.data.chunk(2), strict=True)
        named |= {f"{base}.mlp.{name}.weight": part for name, part in halves}
        named[f"{base}.mlp.down_proj.weight"] = layer.mlp.down.data
        if norms is not None:
            named[f"{base}.self_attn.q_norm.weight"] = norms.query.to(dtype)
            named[f"{base}.self_attn.k_norm.weight"] = norms.key.to(dtype)
    return named


class StaticTransformers:
    def __init__(self, model: Any, *, compiled: bool = True) -> None:
        self._model, self._compiled = model, compiled

    @torch.no_grad()
    def answers(self, prompts: Tensor, num_tokens: int) -> Tensor:
        """Generates answers [B, num_tokens] to B prompts [B, T] int64 of T tokens each."""
        prompts_and_answers = self._model.generate(
            prompts,
            attention_mask=torch.ones_like(prompts),
            max_new_tokens=num_tokens,
            min_new_tokens=num_tokens,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
            cache_implementation="static",
            disable_compile=not self._compiled,
        )
        return prompts_and_answers[:, prompts.shape[1] :]  # type: ignore[no-any-return]
