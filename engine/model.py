"""The dense decoder of the Llama family (Llama, Qwen2, Qwen3) over rows.

A row is one token at one position with one slot to write its key and value to. Prefill, plain decoding, chains and
trees are all rows of one pass: what differs is which keys a row attends to. Nothing in a pass (kernels/decoder.py)
mixes rows except attention, and attention reads only a row's own keys: so a row's bits depend on its own past alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.config import ModelConfig
from engine.kv_cache import KVCache
from engine.weights import DecoderWeights
from kernels.attention import AttentionRows
from kernels.decoder import DecoderLayers, DecoderRows, DecoderShape, decoder
from kernels.linear import linear
from kernels.lora import LoraRun

_HIDDEN_STATES_CHUNK = 256  # rows per pass in `hidden_states`; any number gives the same bits


@dataclass(frozen=True, slots=True)
class Rows:
    """M rows of one pass; token_ids [M] int64."""

    token_ids: Tensor
    rows: DecoderRows
    lora_runs: tuple[LoraRun, ...] = ()


@dataclass(frozen=True, slots=True)
class Hidden:
    """What a pass computed, in the model's dtype.

    final: [M, H] after the final norm.
    taps: [M, T, H], the residual streams where they enter the layers asked for, in their order; None where none are.
    """

    final: Tensor
    taps: Tensor | None


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

    @property
    def lm_head(self) -> Tensor:
        """[V, H], unpacked."""
        return self.weights.lm_head

    @property
    def max_positions(self) -> int:
        return self._layers.cosines.shape[0]

    @torch.inference_mode()
    def forward(self, rows: Rows, cache: KVCache, tap_layers: Sequence[int] = ()) -> Hidden:
        """Writes the rows' keys and values. `tap_layers` as in kernels.decoder.decoder."""
        residual = self.weights.embedding[rows.token_ids].float()  # [M, H]
        return Hidden(*decoder(self._layers, residual, rows.rows, cache.keys, cache.values, tap_layers, rows.lora_runs))

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor:
        """hidden [M, H] in the model's dtype -> [M, V] float32."""
        return linear(hidden.contiguous(), self.weights.lm_head_packed)

    @torch.inference_mode()
    def hidden_states(self, token_ids: Tensor, tap_layers: Sequence[int] = ()) -> Hidden:
        """token_ids [T] int64 of one sequence from position 0 -> rows in their order; the bits are those of serving."""
        T = token_ids.shape[0]
        cache = KVCache(self.config, num_slots=T, max_sequences=1, max_seq_len=T, dtype=self.dtype, device=self.device)
        cache.slot_tables[0] = torch.arange(T, dtype=torch.int32)
        pieces = []
        for start in range(0, T, _HIDDEN_STATES_CHUNK):
            positions = torch.arange(start, min(T, start + _HIDDEN_STATES_CHUNK), device=self.device)
            attention = AttentionRows(
                slot_tables=cache.slot_tables,
                seqs=torch.zeros_like(positions),
                prefix_lens=positions + 1,
                paths=torch.zeros(positions.shape[0], 1, dtype=torch.int32, device=self.device),
                path_lens=torch.zeros_like(positions),
            )
            rows = DecoderRows(positions, positions, attention)
            pieces.append(self.forward(Rows(token_ids[positions], rows), cache, tap_layers))
        taps = [piece.taps for piece in pieces if piece.taps is not None]
        return Hidden(torch.cat([piece.final for piece in pieces]), torch.cat(taps) if taps else None)
