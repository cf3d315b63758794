"""Computes the hidden states of a text for training, with a separate cache. They have the same bits as in serving."""

from collections.abc import Sequence

import torch
from torch import Tensor

from engine.cache.kv_cache import KVCache
from engine.models.base import Hidden, Model, Rows
from kernels.attention import AttentionRows
from kernels.decoder import DecoderRows

_ROWS_PER_PASS = 256  # the result does not depend on this number


@torch.inference_mode()
def read_text(model: Model, token_ids: Tensor, tap_layers: Sequence[int] = ()) -> Hidden:
    """Returns the T hidden states of a text. token_ids: [T] int64, the first one at position 0."""
    T, device = token_ids.shape[0], model.device
    cache = KVCache(model.config, num_slots=T, max_sequences=1, max_seq_len=T, dtype=model.dtype, device=device)
    cache.slot_tables[0] = torch.arange(T, dtype=torch.int32)
    pieces = []
    for start in range(0, T, _ROWS_PER_PASS):
        positions = torch.arange(start, min(T, start + _ROWS_PER_PASS), device=device)
        rows = DecoderRows(positions, positions, prefix_rows(cache.slot_tables, positions))
        pieces.append(model.forward(Rows(token_ids[positions], rows), cache, tap_layers))
    taps = [piece.taps for piece in pieces if piece.taps is not None]
    return Hidden(torch.cat([piece.final for piece in pieces]), torch.cat(taps) if taps else None)


def prefix_rows(slot_tables: Tensor, positions: Tensor) -> AttentionRows:
    """Returns rows of the sequence in table row 0, each of which attends to the positions up to its own."""
    return AttentionRows(
        slot_tables=slot_tables,
        seqs=torch.zeros_like(positions),
        prefix_lens=positions + 1,
        paths=torch.zeros(positions.shape[0], 1, dtype=torch.int32, device=positions.device),
        path_lens=torch.zeros_like(positions),
    )
