"""The KV cache: a pool of slots, one per token, and for each sequence a table from position to slot.

Because every key is reached through a table, an accepted draft node is kept by writing its slot into the table: keys
and values are never copied. Layer i's keys and values are [slots, Hkv, D].
"""

import torch
from torch import Tensor

from engine.config import ModelConfig


class KVCache:
    def __init__(
        self,
        config: ModelConfig,
        *,
        num_slots: int,
        max_sequences: int,
        max_seq_len: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        shape = (num_slots, config.num_kv_heads, config.head_dim)
        self.keys = [torch.empty(shape, dtype=dtype, device=device) for _ in range(config.num_layers)]
        self.values = [torch.empty(shape, dtype=dtype, device=device) for _ in range(config.num_layers)]
        self.slot_tables: Tensor = torch.zeros(max_sequences, max_seq_len, dtype=torch.int32, device=device)
        self._free_slots = list(range(num_slots - 1, -1, -1))  # a stack, lowest on top: neighbours stay neighbours
        self._free_rows = list(range(max_sequences - 1, -1, -1))
        self._unreserved = num_slots
        self.num_slots = num_slots

    @staticmethod
    def slot_bytes(config: ModelConfig, dtype: torch.dtype) -> int:
        return 2 * config.num_layers * config.num_kv_heads * config.head_dim * dtype.itemsize

    def can_reserve(self, num_slots: int) -> bool:
        return bool(self._free_rows) and num_slots <= self._unreserved

    def reserve(self, num_slots: int) -> int:
        """Sets slots aside for a sequence's whole life, so that it never has to give way; returns its table row."""
        assert self.can_reserve(num_slots)
        self._unreserved -= num_slots
        return self._free_rows.pop()

    def release(self, row: int, num_slots: int, slots: list[int]) -> None:
        """Ends a sequence: its reservation, its table row and the slots it holds."""
        self._unreserved += num_slots
        self._free_rows.append(row)
        self.free(slots)

    def allocate(self, count: int) -> list[int]:
        """Slots out of a reservation."""
        return [self._free_slots.pop() for _ in range(count)]

    def free(self, slots: list[int]) -> None:
        self._free_slots.extend(reversed(slots))

    def append(self, row: int, position: int, slots: list[int]) -> None:
        """Names the slots of a sequence's next positions, `position` the first."""
        if slots:
            self.slot_tables[row, position : position + len(slots)] = torch.tensor(slots, dtype=torch.int32)
