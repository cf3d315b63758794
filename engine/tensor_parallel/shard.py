"""One rank's part of a model. Shape letters: M rows, H the hidden size, V the vocabulary size."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.cache.kv_cache import KVCache
from engine.config import ModelConfig
from engine.models.base import Hidden
from engine.models.deepseek_weights import DeepseekLayer
from engine.tensor_parallel.cut import Cut
from engine.tensor_parallel.exchange import Exchange
from engine.tensor_parallel.group import Group
from engine.tensor_parallel.layers import DenseLayers, LatentLayers, Layers
from kernels.decoder import DecoderRows, LayerWeights
from kernels.linear import LinearWeight, linear
from kernels.lora import LoraRun


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardWeights:
    """The weights of one rank; norms, routers and the products that compute latents are complete.

    embedding: [V, columns of the rank]; the columns that belong to the rank, for all tokens.
    lm_head_packed: the rows of the LM head for the rank's part of the vocabulary.
    """

    embedding: Tensor
    layers: tuple[LayerWeights, ...] | tuple[DeepseekLayer, ...]
    final_norm: Tensor
    lm_head_packed: LinearWeight


class Shard:
    """One rank's part of a model. All ranks must call the same methods with the same arguments."""

    def __init__(
        self,
        config: ModelConfig,
        weights: ShardWeights,
        tables: tuple[Tensor, Tensor],
        dtype: torch.dtype,
        cut: Cut,
        group: Group,
    ) -> None:
        """config: the configuration of the whole model. tables: rotary cosines and sines."""
        self.config = config
        self.weights = weights
        self.tables = tables
        self.dtype = dtype
        self.device = weights.embedding.device
        self.cut = cut
        self.group = group
        self._exchange = Exchange(cut, group)
        build = DenseLayers if config.latent is None else LatentLayers
        self._layers: Layers = build(config, weights.layers, tables, dtype, self._exchange)  # type: ignore[arg-type]

    @torch.inference_mode()
    def forward(
        self,
        token_ids: Tensor,
        rows: DecoderRows,
        cache: KVCache,
        *,
        layers: Sequence[int],
        tap_layers: Sequence[int],
        runs: Sequence[LoraRun],
    ) -> Hidden:
        """Returns the hidden states of the rows, and writes the keys and values of the rank's heads to the cache.

        layers: indices of the layers to run. `cache` has keys and values for each of these layers, in this order.
        The other arguments are as in `decoder` (kernels/decoder.py).
        """
        residual = self._exchange.hidden(self.weights.embedding[token_ids]).float()  # [M, H]
        taps: dict[int, Tensor] = {}
        for place, index in enumerate(layers):
            if place in tap_layers:
                taps[place] = residual.to(self.dtype, copy=True)
            residual = self._layers.run(index, residual, rows, cache.keys[place], cache.values[place], runs)
        taps[len(layers)] = residual.to(self.dtype)
        final = self._layers.norm(residual, self.weights.final_norm)
        return Hidden(final, torch.stack([taps[place] for place in tap_layers], dim=1) if tap_layers else None)

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor | None:
        """Returns logits [M, V] float32 on rank 0, None on the others. hidden: [M, H] on every rank."""
        return self._exchange.logits(linear(hidden, self.weights.lm_head_packed))
