"""The KV cache: keys and values by slot, and for each sequence a table from position to slot.

Keys and values are only read through the tables. An accepted draft node is kept by writing its slot to the table, and
a prefix is shared by writing its slots to several tables, so keys and values are never copied. engine/cache/slots.py
allocates the slots. The keys of a layer, and also its values, have the shape [slots, heads, width]. The number of heads
and the widths are in the model's `cache_layout`.
"""

from collections.abc import Sequence as Many

import torch
from torch import Tensor

from engine.config import ModelConfig
from kernels.memory import empty, to_device


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
        num_padding_slots: int = 0,
    ) -> None:
        """`num_padding_slots`: number of slots after the first `num_slots`, which are never allocated to a sequence."""
        layout = config.cache_layout
        shape = (config.num_layers, num_slots + num_padding_slots, layout.num_heads)
        keys = empty((*shape, layout.key_width), dtype, device)
        if layout.values_in_keys:
            values = keys[..., : layout.value_width]
        else:
            values = empty((*shape, layout.value_width), dtype, device)
        self.keys, self.values = list(keys), list(values)
        self.slot_tables: Tensor = torch.zeros(max_sequences, max_seq_len, dtype=torch.int32, device=device)
        self.num_slots = num_slots

    @staticmethod
    def slot_bytes(config: ModelConfig, dtype: torch.dtype) -> int:
        """Returns the bytes that the keys and values of one slot take in all layers."""
        return config.num_layers * config.cache_layout.num_elements * dtype.itemsize

    def write_tables(self, rows: Many[int], positions: Many[int], slots: Many[int]) -> None:
        """Writes slots[i] to the table row rows[i] at positions[i], for all i."""
        if slots:
            entries = to_device(torch.tensor((rows, positions, slots), dtype=torch.int64), self.slot_tables.device)
            self.slot_tables[entries[0], entries[1]] = entries[2].int()
