"""Builds the rows of one forward pass: collects them in lists on the host, and converts the lists to tensors once."""

from collections.abc import Hashable

import torch
from torch import Tensor

from engine.cache.kv_cache import KVCache
from engine.draft import Draft
from engine.lora.adapters import lora_runs
from engine.lora.stacks import LoraStacks
from engine.models.base import Rows
from engine.sequence import Sequence
from kernels.attention import AttentionRows
from kernels.decoder import DecoderRows
from kernels.memory import to_device


class RowBuilder:
    def __init__(self, cache: KVCache, stacks: LoraStacks | None = None) -> None:
        """`stacks`: weights of the LoRA adapters on CUDA; None on other devices."""
        self._cache = cache
        self._stacks = stacks
        self._tokens: list[int] = []
        self._positions: list[int] = []
        self._slots: list[int] = []
        self._table_rows: list[int] = []
        self._prefix_lens: list[int] = []
        self._roots: list[Hashable] = []
        self._paths: list[tuple[int, ...]] = []
        self._sampling_rows: list[int] = []  # indices of the rows that sample a token
        self._table_entries: tuple[list[int], list[int], list[int]] = ([], [], [])  # table rows, positions, slots

    @property
    def num_rows(self) -> int:
        return len(self._tokens)

    def add_row(
        self,
        *,
        token: int,
        position: int,
        slot: int,
        table_row: int,
        prefix_len: int,
        path: tuple[int, ...],
        root: Hashable = None,
    ) -> None:
        """Adds a row that attends to the first `prefix_len` positions of the slot table and to the slots of `path`.

        root: the LoRA adapter or None, as in `Sequence`.
        """
        self._tokens.append(token)
        self._positions.append(position)
        self._slots.append(slot)
        self._table_rows.append(table_row)
        self._prefix_lens.append(prefix_len)
        self._paths.append(path)
        self._roots.append(root)

    def add_prefill(self, sequence: Sequence, end: int) -> tuple[int, ...]:
        """Adds rows for the pending tokens up to position `end`, and returns the indices of these rows.

        The row of the sequence's last token, if included, samples the next token.
        """
        first = self.num_rows
        self._write_table(sequence)
        for position in range(sequence.num_computed, end):
            self._add_committed(sequence, position)
        if end == len(sequence.tokens):
            self._sampling_rows.append(self.num_rows - 1)
        return tuple(range(first, self.num_rows))

    def add_draft(self, sequence: Sequence, draft: Draft) -> tuple[int, ...]:
        """Adds rows for the last committed token and for the draft nodes, and returns the indices of these rows.

        The nodes use the cache slots in `sequence.draft_slots`. Each of the rows samples a token.
        """
        position, first, slots = sequence.num_computed, self.num_rows, sequence.draft_slots
        self._write_table(sequence)
        self._add_committed(sequence, position)
        paths: list[tuple[int, ...]] = []
        for node, (token, parent) in enumerate(zip(draft.tokens, draft.parents, strict=True)):
            paths.append((*(paths[parent] if parent >= 0 else ()), slots[node]))
            self.add_row(
                token=token,
                position=position + len(paths[node]),
                slot=slots[node],
                table_row=sequence.table_row,
                prefix_len=position + 1,
                path=paths[node],
                root=sequence.root,
            )
        rows = tuple(range(first, self.num_rows))
        self._sampling_rows += rows
        return rows

    def build(self) -> tuple[Rows, Tensor]:
        """Returns the rows, and int64 indices of the rows that sample. A step copies data to the device only here."""
        device = self._cache.slot_tables.device
        self._cache.write_tables(*self._table_entries)
        path_lengths = [len(path) for path in self._paths]
        width = max(1, *path_lengths)
        paths = [path + (0,) * (width - len(path)) for path in self._paths]
        columns = (self._tokens, self._positions, self._slots, self._table_rows, self._prefix_lens, path_lengths)
        integers = to_device(torch.tensor(columns, dtype=torch.int64), device)
        tokens, positions, slots, seqs, prefix_lens, path_lens = integers.unbind()
        attention = AttentionRows(
            slot_tables=self._cache.slot_tables,
            seqs=seqs,
            prefix_lens=prefix_lens,
            paths=to_device(torch.tensor(paths, dtype=torch.int32), device),
            path_lens=path_lens,
            max_seqs=len(set(self._table_rows)),
            max_keys=max(map(sum, zip(self._prefix_lens, path_lengths, strict=True)), default=0),
        )
        runs = lora_runs(self._roots) if self._stacks is None else ()
        stacked = None if self._stacks is None else self._stacks.rows(self._roots)
        rows = Rows(tokens, DecoderRows(positions, slots, attention), runs, stacked)
        return rows, to_device(torch.tensor(self._sampling_rows, dtype=torch.int64), device)

    def _write_table(self, sequence: Sequence) -> None:
        rows, positions, slots = self._table_entries
        new = range(sequence.num_tabled, len(sequence.slots))
        rows += [sequence.table_row] * len(new)
        positions += new
        slots += sequence.slots[sequence.num_tabled :]
        sequence.num_tabled = len(sequence.slots)

    def _add_committed(self, sequence: Sequence, position: int) -> None:
        self.add_row(
            token=sequence.tokens[position],
            position=position,
            slot=sequence.slots[position],
            table_row=sequence.table_row,
            prefix_len=position + 1,
            path=(),
            root=sequence.root,
        )
