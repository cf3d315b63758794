"""Puts the rows of one pass together: lists on the host, tensors once at the end."""

import torch
from torch import Tensor

from engine.draft import Draft
from engine.kv_cache import KVCache
from engine.model import Rows
from engine.sequence import Sequence
from kernels.attention import AttentionRows
from kernels.decoder import DecoderRows


class RowBuilder:
    def __init__(self, cache: KVCache) -> None:
        self._cache = cache
        self._tokens: list[int] = []
        self._positions: list[int] = []
        self._slots: list[int] = []
        self._table_rows: list[int] = []
        self._prefix_lens: list[int] = []
        self._paths: list[tuple[int, ...]] = []
        self._wanted: list[int] = []  # rows whose logits choose a token

    @property
    def num_rows(self) -> int:
        return len(self._tokens)

    def add_row(
        self, *, token: int, position: int, slot: int, table_row: int, prefix_len: int, path: tuple[int, ...]
    ) -> None:
        self._tokens.append(token)
        self._positions.append(position)
        self._slots.append(slot)
        self._table_rows.append(table_row)
        self._prefix_lens.append(prefix_len)
        self._paths.append(path)

    def add_prefill(self, sequence: Sequence, end: int) -> tuple[int, ...]:
        """Pending tokens up to position `end`; a prompt's last row chooses a token. Returns the rows."""
        start, first = sequence.num_computed, self.num_rows
        self._grow(sequence, end - start)
        for position in range(start, end):
            self._add_committed(sequence, position)
        if end == len(sequence.tokens):
            self._wanted.append(self.num_rows - 1)
        return tuple(range(first, self.num_rows))

    def add_draft(self, sequence: Sequence, draft: Draft) -> int:
        """The last committed token and the draft's nodes under it; all choose a token. Returns the first's row."""
        position, first = sequence.num_computed, self.num_rows
        self._grow(sequence, 1)
        self._wanted += range(self.num_rows, self.num_rows + 1 + len(draft))
        self._add_committed(sequence, position)
        slots = sequence.draft_slots = self._cache.allocate(len(draft))
        for node, depth in enumerate(draft.depths()):
            self.add_row(
                token=draft.tokens[node],
                position=position + depth,
                slot=slots[node],
                table_row=sequence.table_row,
                prefix_len=position + 1,
                path=tuple(slots[ancestor] for ancestor in draft.path(node)),
            )
        return first

    def build(self) -> tuple[Rows, Tensor]:
        """The rows, and the indexes [R] int64 of those that choose a token. The step's only copy to the device."""
        device = self._cache.slot_tables.device
        path_lengths = [len(path) for path in self._paths]
        width = max(1, *path_lengths)
        paths = [path + (0,) * (width - len(path)) for path in self._paths]
        integers = torch.tensor(
            (self._tokens, self._positions, self._slots, self._table_rows, self._prefix_lens, path_lengths),
            dtype=torch.int64,
        ).to(device)
        tokens, positions, slots, seqs, prefix_lens, path_lens = integers.unbind()
        attention = AttentionRows(
            slot_tables=self._cache.slot_tables,
            seqs=seqs,
            prefix_lens=prefix_lens,
            paths=torch.tensor(paths, dtype=torch.int32).to(device),
            path_lens=path_lens,
        )
        return Rows(tokens, DecoderRows(positions, slots, attention)), torch.tensor(self._wanted, dtype=torch.int64).to(
            device
        )

    def _grow(self, sequence: Sequence, count: int) -> None:
        """Slots for the next `count` committed positions."""
        slots = self._cache.allocate(count)
        self._cache.append(sequence.table_row, len(sequence.slots), slots)
        sequence.slots += slots

    def _add_committed(self, sequence: Sequence, position: int) -> None:
        self.add_row(
            token=sequence.tokens[position],
            position=position,
            slot=sequence.slots[position],
            table_row=sequence.table_row,
            prefix_len=position + 1,
            path=(),
        )
