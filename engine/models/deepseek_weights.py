"""DeepSeek-V3's weights, read from safetensors and laid out for the kernels.

Shape letters: H the hidden size, V the vocabulary size, Hq the number of heads, R the rank of the latent, Rq the rank
of the queries. In attention, a head's query and key have N elements without and P elements with rotary embedding, and a
head's value has Dv elements.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from engine.config import ExpertsConfig, LatentConfig, ModelConfig
from engine.errors import ModelNotLoadable
from engine.models.weights import TensorSource, all_outputs, open_weights, trimmed, unmapped
from kernels.experts import Expert, Experts
from kernels.linear import LinearWeight, pack
from kernels.moe import Routing


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentWeights:
    """The weights of latent attention.

    query_down and query_norm are None if one matrix computes the queries from the hidden state.
    """

    query_down: LinearWeight | None  # [Rq, H]
    query_norm: Tensor | None  # [Rq] float32
    query: LinearWeight  # [Hq (N + P), H or Rq]
    latent: LinearWeight  # [R + P, H]
    latent_norm: Tensor  # [R] float32
    key_up: tuple[LinearWeight, ...]  # per head [R, N]
    value_up: tuple[LinearWeight, ...]  # per head [Dv, R]
    output: LinearWeight  # [H, Hq Dv]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertsWeights:
    routing: Routing
    experts: Experts
    shared: Expert


@dataclass(frozen=True, slots=True, kw_only=True)
class DeepseekLayer:
    input_norm: Tensor  # [H] float32
    attention: LatentWeights
    post_norm: Tensor  # [H] float32
    mlp: Expert | ExpertsWeights


@dataclass(frozen=True, slots=True, kw_only=True)
class DeepseekWeights:
    embedding: Tensor  # [V, H]
    layers: tuple[DeepseekLayer, ...]
    final_norm: Tensor  # [H] float32
    lm_head: Tensor  # [V, H], not packed, because drafters share it
    lm_head_packed: LinearWeight


class DeepseekReader:
    """Reads tensors of a checkpoint. The methods raise ModelNotLoadable if a tensor is missing or has a wrong shape."""

    def __init__(
        self,
        source: TensorSource,
        config: ModelConfig,
        dtype: torch.dtype,
        device: torch.device,
        outputs: Callable[[str, int], slice] = all_outputs,
    ) -> None:
        """`outputs`: as in `DecoderReader` (engine/models/weights.py)."""
        # Every configuration of a deepseek_v3 has `latent` and `experts`.
        assert config.latent is not None
        assert config.experts is not None
        self._source, self._config, self._dtype, self._device = source, config, dtype, device
        self._latent: LatentConfig = config.latent
        self._experts: ExpertsConfig = config.experts
        self._outputs = outputs

    def tensor(self, name: str, *shape: int) -> Tensor:
        """Returns the tensor in the model's dtype."""
        return self._read(name, *shape).to(device=self._device, dtype=self._dtype)

    def norm(self, name: str, size: int) -> Tensor:
        return self._read(f"{name}.weight", size).to(self._device).float()

    def linear(self, name: str, rows: int, columns: int, *, bias: bool = False) -> LinearWeight:
        weight = self.tensor(f"{name}.weight", rows, columns)
        return pack(weight, self.tensor(f"{name}.bias", rows) if bias else None)

    def layer(self, index: int) -> DeepseekLayer:
        base, hidden_size = f"model.layers.{index}", self._config.hidden_size
        dense = index < self._experts.num_dense_layers
        mlp = self._expert(f"{base}.mlp", self._config.intermediate_size) if dense else self._mixture(f"{base}.mlp")
        return DeepseekLayer(
            input_norm=self.norm(f"{base}.input_layernorm", hidden_size),
            attention=self._attention(f"{base}.self_attn"),
            post_norm=self.norm(f"{base}.post_attention_layernorm", hidden_size),
            mlp=mlp,
        )

    def _read(self, name: str, *shape: int) -> Tensor:
        tensor = self._source.tensor(name)
        if tuple(tensor.shape) != shape:
            raise ModelNotLoadable(f"{name} must be {list(shape)}, got {list(tensor.shape)}")
        return tensor[self._outputs(name, shape[0])]

    def _attention(self, base: str) -> LatentWeights:
        latent, H, heads, bias = (
            self._latent,
            self._config.hidden_size,
            self._config.num_heads,
            self._config.attention_bias,
        )
        R, N, Dv, query_rank = latent.rank, latent.nope_dim, latent.value_dim, latent.query_rank
        width = heads * (N + latent.rope_dim)
        up = self.tensor(f"{base}.kv_b_proj.weight", heads * (N + Dv), R).view(-1, N + Dv, R)
        return LatentWeights(
            query_down=self.linear(f"{base}.q_a_proj", query_rank, H, bias=bias) if query_rank else None,
            query_norm=self.norm(f"{base}.q_a_layernorm", query_rank) if query_rank else None,
            query=self.linear(f"{base}.q_b_proj", width, query_rank)
            if query_rank
            else self.linear(f"{base}.q_proj", width, H),
            latent=self.linear(f"{base}.kv_a_proj_with_mqa", R + latent.rope_dim, H, bias=bias),
            latent_norm=self.norm(f"{base}.kv_a_layernorm", R),
            key_up=tuple(pack(head[:N].t().contiguous()) for head in up),
            value_up=tuple(pack(head[N:]) for head in up),
            output=self.linear(f"{base}.o_proj", H, heads * Dv, bias=bias),
        )

    def _expert(self, base: str, intermediate: int) -> Expert:
        H = self._config.hidden_size
        gate_up = [self.tensor(f"{base}.{part}_proj.weight", intermediate, H) for part in ("gate", "up")]
        return Expert(pack(torch.cat(gate_up)), self.linear(f"{base}.down_proj", H, intermediate))

    def _mixture(self, base: str) -> ExpertsWeights:
        config, H = self._experts, self._config.hidden_size
        routing = Routing(
            weight=pack(self._read(f"{base}.gate.weight", config.num_experts, H).to(self._device).float()),
            bias=self._read(f"{base}.gate.e_score_correction_bias", config.num_experts).to(self._device).float(),
            num_chosen=config.num_experts_per_token,
            num_groups=config.num_groups,
            num_chosen_groups=config.num_groups_per_token,
            normalized=config.normalized,
            scale=config.scale,
        )
        experts = range(config.num_experts)
        return ExpertsWeights(
            routing=routing,
            experts=Experts([self._expert(f"{base}.experts.{index}", config.intermediate_size) for index in experts]),
            shared=self._expert(f"{base}.shared_experts", config.intermediate_size * config.num_shared),
        )


def load_deepseek_weights(
    model_dir: Path, config: ModelConfig, dtype: torch.dtype, device: torch.device
) -> DeepseekWeights:
    """Reads all weights of a folder.

    Raises: ModelNotLoadable: a file or tensor is missing, damaged or has a wrong shape.
    """
    with open_weights(model_dir) as source:
        reader, size = DeepseekReader(source, config, dtype, device), (config.vocab_size, config.hidden_size)
        embedding = unmapped(reader.tensor("model.embed_tokens.weight", *size))
        lm_head = embedding if config.tie_word_embeddings else unmapped(reader.tensor("lm_head.weight", *size))
        # Packing the head takes the most temporary memory, so it is packed first, while no layer is in memory.
        lm_head_packed = pack(lm_head)
        return DeepseekWeights(
            embedding=embedding,
            layers=tuple(map(reader.layer, trimmed(config.num_layers))),
            final_norm=reader.norm("model.norm", config.hidden_size),
            lm_head=lm_head,
            lm_head_packed=lm_head_packed,
        )
