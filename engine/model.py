"""The dense decoder of the Llama family (Llama, Mistral-like, Qwen2, Qwen3) over rows.

A row is one token at one position with one slot to write its key and value to. Prefill, plain decoding, chains and
trees are all rows of one pass: what differs is which keys a row attends to. The residual stream is float32; what goes
into a matrix product is in the model's dtype. Nothing in a pass mixes rows except attention, and attention reads only
a row's own keys: so a row's bits depend on its own past alone.

    residual = embedding[token]
    each layer:  residual += output(attention(rope(qkv(norm(residual)))))
                 residual += down(swiglu(gate_up(norm(residual))))
    hidden = norm(residual)                                   # what lm_head and Medusa heads read
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from engine.config import ModelConfig
from engine.kv_cache import KVCache
from engine.weights import DecoderWeights, LayerWeights
from kernels.attention import AttentionRows, attention
from kernels.linear import linear
from kernels.norm import rms_norm
from kernels.rope import rope_write
from kernels.swiglu import swiglu

_HIDDEN_STATES_CHUNK = 256  # rows per pass in `hidden_states`; any number gives the same bits


@dataclass(frozen=True, slots=True)
class Rows:
    """M rows of one pass.

    token_ids, positions, slots: [M] int64; slots distinct.
    attention: the keys of each row, the row's own included.
    """

    token_ids: Tensor
    positions: Tensor
    slots: Tensor
    attention: AttentionRows


class Decoder:
    def __init__(
        self, config: ModelConfig, weights: DecoderWeights, tables: tuple[Tensor, Tensor], dtype: torch.dtype
    ) -> None:
        self.config = config
        self.weights = weights
        self.dtype = dtype
        self.device = weights.embedding.device
        self._cosines, self._sines = (table.to(self.device).contiguous() for table in tables)

    @property
    def lm_head(self) -> Tensor:
        """[V, H], unpacked."""
        return self.weights.lm_head

    @property
    def max_positions(self) -> int:
        return self._cosines.shape[0]

    @torch.inference_mode()
    def forward(self, rows: Rows, cache: KVCache) -> Tensor:
        """Writes the rows' keys and values and returns their hidden states [M, H] after the final norm."""
        residual = self.weights.embedding[rows.token_ids].float()  # [M, H]
        for index, layer in enumerate(self.weights.layers):
            self._attend(layer, residual, rows, cache.keys[index], cache.values[index])
            normed = rms_norm(residual, layer.post_norm, self.config.norm_eps, self.dtype)
            linear(swiglu(linear(normed, layer.gate_up), self.dtype), layer.down, add_to=residual)
        return rms_norm(residual, self.weights.final_norm, self.config.norm_eps, self.dtype)

    def _attend(self, layer: LayerWeights, residual: Tensor, rows: Rows, keys: Tensor, values: Tensor) -> None:
        M, D, num_heads = residual.shape[0], self.config.head_dim, self.config.num_heads
        qkv = linear(rms_norm(residual, layer.input_norm, self.config.norm_eps, self.dtype), layer.qkv)
        rope_write(qkv, self._cosines, self._sines, rows.positions, rows.slots, keys, values, layer.head_norms)
        q = qkv.view(M, -1, D)[:, :num_heads]  # [M, Hq, D]
        out = attention(q, keys, values, rows.attention)
        linear(out.view(M, num_heads * D), layer.output, add_to=residual)

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor:
        """hidden [M, H] in the model's dtype -> [M, V] float32."""
        return linear(hidden.contiguous(), self.weights.lm_head_packed)

    @torch.inference_mode()
    def hidden_states(self, token_ids: Tensor) -> Tensor:
        """token_ids [T] int64 of one sequence from position 0 -> [T, H] after the final norm, in the model's dtype.

        The tap of Medusa heads; the bits are those of serving.
        """
        T = token_ids.shape[0]
        cache = KVCache(self.config, num_slots=T, max_sequences=1, max_seq_len=T, dtype=self.dtype, device=self.device)
        cache.slot_tables[0] = torch.arange(T, dtype=torch.int32)
        pieces = []
        for start in range(0, T, _HIDDEN_STATES_CHUNK):
            positions = torch.arange(start, min(T, start + _HIDDEN_STATES_CHUNK), device=self.device)
            rows = AttentionRows(
                slot_tables=cache.slot_tables,
                seqs=torch.zeros_like(positions),
                prefix_lens=positions + 1,
                paths=torch.zeros(positions.shape[0], 1, dtype=torch.int32, device=self.device),
                path_lens=torch.zeros_like(positions),
            )
            pieces.append(self.forward(Rows(token_ids[positions], positions, positions, rows), cache))
        return torch.cat(pieces)
