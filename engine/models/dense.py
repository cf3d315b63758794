"""The decoder of the Llama family (Llama, Mistral, Qwen2, Qwen3), which computes rows (engine/models/base.py).

In a pass (kernels/decoder.py) only attention combines rows, and a row attends only to the keys of its own sequence. So
a row's bits depend only on the tokens up to its position.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from engine.cache.kv_cache import KVCache
from engine.config import ModelConfig
from engine.models.base import Hidden, Rows
from engine.models.reading import read_text
from engine.models.weights import DecoderWeights
from kernels.decoder import DecoderLayers, DecoderShape, decoder
from kernels.linear import linear


class Decoder:
    def __init__(
        self, config: ModelConfig, weights: DecoderWeights, tables: tuple[Tensor, Tensor], dtype: torch.dtype
    ) -> None:
        self.config = config
        self.weights = weights
        self.dtype = dtype
        self.device = weights.embedding.device
        shape = DecoderShape(
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            norm_eps=config.norm_eps,
            dtype=dtype,
        )
        cosines, sines = (table.to(self.device) for table in tables)
        self._layers = DecoderLayers(shape, weights.layers, weights.final_norm, cosines, sines)

    def with_layers(self, indices: Sequence[int]) -> "Decoder":
        """Returns a decoder of these layers only, which shares the weights."""
        weights = replace(self.weights, layers=tuple(self.weights.layers[index] for index in indices))
        tables = (self._layers.cosines, self._layers.sines)
        return Decoder(replace(self.config, num_layers=len(indices)), weights, tables, self.dtype)

    @property
    def lm_head(self) -> Tensor:
        """[V, H], not packed for `kernels.linear`."""
        return self.weights.lm_head

    @property
    def max_positions(self) -> int:
        return self._layers.cosines.shape[0]

    @torch.inference_mode()
    def forward(self, rows: Rows, cache: KVCache, tap_layers: Sequence[int] = ()) -> Hidden:
        """Writes the rows' keys and values to the cache."""
        residual = self.weights.embedding[rows.token_ids].float()  # [M, H]
        caches = (cache.keys, cache.values)
        return Hidden(
            *decoder(self._layers, residual, rows.rows, *caches, tap_layers, rows.lora_runs, stacked=rows.stacked)
        )

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor:
        """Returns logits [M, V] float32. hidden: [M, H] after the final norm, in the model's dtype."""
        return linear(hidden.contiguous(), self.weights.lm_head_packed, one_sum=True)

    def hidden_states(self, token_ids: Tensor, tap_layers: Sequence[int] = ()) -> Hidden:
        """Returns the T hidden states of a text, with the same bits as in serving. token_ids: [T] int64."""
        return read_text(self, token_ids, tap_layers)
