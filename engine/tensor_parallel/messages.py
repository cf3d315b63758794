"""The messages that rank 0 sends to the other ranks, as vectors of integers or of bytes.

A message is a header with the kind and the length, and then the content. Rows are sent with their own slots, so the
other ranks need no slot tables and hold no state of the scheduler.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import torch
from torch import Tensor

from engine.tensor_parallel.group import Group
from kernels.attention import AttentionRows
from kernels.decoder import DecoderRows


class Kind(IntEnum):
    PASS = 0  # content: `PassMessage`
    LOGITS = 1  # content: hidden states, as bytes
    ADAPTER = 2  # content: a LoRA adapter (`_encoded` in engine/tensor_parallel/adapters.py)


@dataclass(frozen=True, slots=True, kw_only=True)
class PassMessage:
    """A forward pass.

    cache_id: the number of the KV cache. When a rank gets a number for the first time, it creates a cache.
    num_slots: the number of slots of this cache.
    dropped_caches: numbers of caches that are not needed any more.
    layers: indices of the layers to run.
    runs: for each run of consecutive rows with the same LoRA adapter, the adapter's number, the first row and the
        number of rows.
    """

    cache_id: int
    num_slots: int
    dropped_caches: Sequence[int]
    layers: Sequence[int]
    tap_layers: Sequence[int]
    runs: Sequence[tuple[int, int, int]]
    token_ids: Tensor
    rows: DecoderRows

    def to_vector(self) -> Tensor:
        attention = _own_tables(self.rows.attention)
        numbers = [self.cache_id, self.num_slots, attention.slot_tables.shape[1], attention.paths.shape[1]]
        lists = (numbers, self.dropped_caches, self.layers, self.tap_layers, [n for run in self.runs for n in run])
        tensors = (self.token_ids, self.rows.positions, self.rows.slots, attention.seqs, attention.prefix_lens)
        tables = (attention.path_lens, attention.paths.flatten(), attention.slot_tables.flatten())
        parts = [*(torch.tensor(part, dtype=torch.int64) for part in lists), *tensors, *(t.long() for t in tables)]
        return torch.cat((torch.tensor([len(parts), *map(len, parts)]), *parts))

    @classmethod
    def of_vector(cls, vector: Tensor) -> "PassMessage":
        count = int(vector[0])
        parts = vector[1 + count :].split(vector[1 : 1 + count].tolist())
        numbers, dropped, layers, tap_layers, runs = (part.tolist() for part in parts[:5])
        token_ids, positions, slots, seqs, prefix_lens, path_lens, paths, tables = (
            part.contiguous() for part in parts[5:]
        )
        cache_id, num_slots, table_width, path_width = numbers
        attention = AttentionRows(
            slot_tables=tables.int().view(-1, table_width),
            seqs=seqs,
            prefix_lens=prefix_lens,
            paths=paths.int().view(-1, path_width),
            path_lens=path_lens,
        )
        return cls(
            cache_id=cache_id,
            num_slots=num_slots,
            dropped_caches=dropped,
            layers=layers,
            tap_layers=tap_layers,
            runs=list(zip(runs[::3], runs[1::3], runs[2::3], strict=True)),
            token_ids=token_ids,
            rows=DecoderRows(positions, slots, attention),
        )


def send(group: Group, kind: Kind, content: Tensor) -> None:
    """Sends a message from rank 0 to the other ranks. content: a vector, int64 for `PASS` and bytes otherwise."""
    group.broadcast(torch.tensor([kind, content.numel()]))
    group.broadcast(content)


def receive(group: Group) -> tuple[Kind, Tensor]:
    """Waits for the next message of rank 0."""
    number, length = group.broadcast(torch.empty(2, dtype=torch.int64)).tolist()
    kind = Kind(number)
    return kind, group.broadcast(torch.empty(length, dtype=torch.int64 if kind == Kind.PASS else torch.uint8))


def _own_tables(rows: AttentionRows) -> AttentionRows:
    """Returns the same rows with smaller slot tables, which contain only the part that the rows read."""
    used, seqs = rows.seqs.unique(return_inverse=True)
    width = max(1, int(rows.prefix_lens.max()))
    return AttentionRows(rows.slot_tables[used, :width], seqs, rows.prefix_lens, rows.paths, rows.path_lens)
