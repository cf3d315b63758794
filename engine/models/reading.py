"""Runs one text through a model with a separate cache, for training and for tests of row invariance.

The results have the same bits as in serving.
"""

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


@torch.inference_mode()
def read_in_chunks(
    model: Model, token_ids: Tensor, chunks: Sequence[int], *, num_other_rows: int = 0, as_tree: bool = False
) -> tuple[Tensor, KVCache]:
    """Returns the hidden states [T, H] of a text, and the cache with its keys and values, position p in slot p.

    Args:
        chunks: the number of positions that each pass reads. If their sum is below T, the rest of the text is not read.
        num_other_rows: every pass also has this many rows of another text.
        as_tree: the positions of a chunk form a path of draft nodes; otherwise they are committed positions.
    """
    T, device = token_ids.shape[0], model.device
    cache = KVCache(
        model.config, num_slots=T + num_other_rows, max_sequences=2, max_seq_len=T, dtype=model.dtype, device=device
    )
    slot_ids = torch.arange(T + num_other_rows, dtype=torch.int32, device=device)
    cache.slot_tables[0], cache.slot_tables[1, :num_other_rows] = slot_ids[:T], slot_ids[T:]
    other_slots = slot_ids[T:].long()  # slots of the other text; its token at position p is in slot T + p
    pieces, start = [], 0
    for length in chunks:
        if start >= T:
            break
        # position p of the text is in slot p
        text_positions = torch.arange(start, min(T, start + length), device=device)
        positions = torch.cat((other_slots - T, text_positions))
        num_drafted = (text_positions - start + 1) if as_tree else torch.zeros_like(text_positions)
        attention = AttentionRows(
            slot_tables=cache.slot_tables,
            seqs=torch.cat((torch.ones_like(other_slots), torch.zeros_like(text_positions))),
            prefix_lens=torch.cat((other_slots - T + 1, text_positions + 1 - num_drafted)),
            paths=slot_ids[start : start + (length if as_tree else 1)].repeat(positions.shape[0], 1),
            path_lens=torch.cat((torch.zeros_like(other_slots), num_drafted)),
        )
        slots = torch.cat((other_slots, text_positions))
        tokens = torch.cat((token_ids[other_slots - T], token_ids[text_positions]))
        hidden = model.forward(Rows(tokens, DecoderRows(positions, slots, attention)), cache).final
        pieces.append(hidden[num_other_rows:])
        start += length
    return torch.cat(pieces), cache
