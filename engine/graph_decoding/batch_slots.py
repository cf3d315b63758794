"""The state of decoding sequences on the device, which graph steps read and advance without the host.

Each row of the cache's slot tables has a batch slot with the same index. The last batch slot belongs to no sequence. It
pads a batch to the next batch size that has a captured graph.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from engine.cache.kv_cache import KVCache
from engine.graph_decoding.device import Device
from engine.request import SamplingParams
from engine.sequence import Sequence
from kernels.candidates import RowSampling

_SIGN = 2**63  # maps unsigned 64-bit seeds to int64, because torch has no arithmetic for uint64


def is_filtered(sampling: SamplingParams) -> bool:
    return sampling.temperature > 0.0 and (sampling.top_k > 0 or sampling.top_p < 1.0 or sampling.min_p > 0.0)


@dataclass(frozen=True, slots=True)
class BatchSlotState:
    """State of B batch slots.

    rows: [B] int64. Indices of the batch slots, which are also rows of the slot tables.
    lengths: [B] int64. Number of tokens of each sequence.
    tokens: [B] int64. Last token of each sequence.
    ends: [B] int64. Maximum number of tokens of each sequence.
    adapters: [B] int64. Index of each sequence's adapter in the LoRA stacks, -1 for none.
    max_keys: upper bound of the number of keys that a row of the step attends to.
    sampling: sampling parameters for each sequence's next token.
    """

    rows: Tensor
    lengths: Tensor
    tokens: Tensor
    ends: Tensor
    adapters: Tensor
    max_keys: int
    sampling: RowSampling

    def sampling_below(self, depths: Tensor) -> RowSampling:
        """Returns the sampling parameters of B * n tokens at the given depths.

        depths: [n] or [B, n] int64. Depth 0 is the sequence's next token, depth d the token d positions later.
        """
        n, own = depths.shape[-1], self.sampling
        positions = own.positions.unsqueeze(1) + depths
        return RowSampling(
            temperatures=own.temperatures.repeat_interleave(n),
            seeds=own.seeds.repeat_interleave(n),
            positions=positions.flatten(),
            top_ks=own.top_ks.repeat_interleave(n),
            top_ps=own.top_ps.repeat_interleave(n),
            min_ps=own.min_ps.repeat_interleave(n),
        )


class BatchSlots:
    def __init__(self, cache: KVCache, device: Device) -> None:
        self.slot_tables = cache.slot_tables
        self.padding_row = cache.slot_tables.shape[0] - 1
        self.padding_slot = cache.num_slots
        self._device = device
        num_batch_slots = cache.slot_tables.shape[0]
        # integers: length, last token, end, adapter, seed, top_k; floats: temperature, top_p, min_p
        padding = torch.tensor((1, 0, 1, -1, 0, 0), device=cache.slot_tables.device)
        self._integers = padding.repeat(num_batch_slots, 1)
        self._floats = torch.zeros(num_batch_slots, 3, dtype=torch.float64, device=cache.slot_tables.device)
        self.slot_tables[self.padding_row] = self.padding_slot

    def load_sequence(self, sequence: Sequence, adapter: int) -> None:
        """Copies a sequence's state to its batch slot. `adapter` is an index in the LoRA stacks, -1 for none."""
        sampling, prompt = sequence.request.sampling, sequence.request.prompt_token_ids
        seed = (sampling.seed + _SIGN) % 2**64 - _SIGN
        end = len(prompt) + sampling.max_tokens
        integers = (len(sequence.tokens), sequence.tokens[-1], end, adapter, seed, sampling.top_k)
        floats = (sampling.temperature, sampling.top_p, sampling.min_p)
        self._device.put(self._integers[sequence.table_row], torch.tensor(integers, dtype=torch.int64))
        self._device.put(self._floats[sequence.table_row], torch.tensor(floats, dtype=torch.float64))

    def fill_for_timing(self, row: int, length: int) -> None:
        """Fills an unused batch slot with a sequence of `length` tokens, in cache slots of its own."""
        slots = torch.arange(row * length, (row + 1) * length, dtype=torch.int32)
        self._device.put(self.slot_tables[row, :length], slots)
        self._device.put(self._integers[row], torch.tensor((length, 0, length, -1, 0, 0), dtype=torch.int64))

    def state(self, rows: Tensor, max_keys: int) -> BatchSlotState:
        """Returns the state of some batch slots. `rows` [B] int64 and `max_keys` as in `BatchSlotState`."""
        lengths, tokens, ends, adapters, seeds, top_ks = self._integers[rows].T.contiguous().unbind()
        temperatures, top_ps, min_ps = self._floats[rows].T.contiguous().unbind()
        sampling = RowSampling(
            temperatures=temperatures, seeds=seeds, positions=lengths, top_ks=top_ks, top_ps=top_ps, min_ps=min_ps
        )
        return BatchSlotState(rows, lengths, tokens, ends, adapters, max_keys, sampling)

    def advance(self, state: BatchSlotState, counts: Tensor, tokens: Tensor) -> None:
        """Lengthens each sequence by its accepted nodes and one sampled token, but not beyond its end.

        counts: [B] int64. Number of accepted nodes. tokens: [B] int64. The new last tokens.

        A sequence at its end stays in its batch slot until the host removes it. Until then, the host drops the results
        that steps return for the sequence.
        """
        lengths = torch.minimum(state.lengths + counts + 1, state.ends)
        self._integers[:, :2].index_copy_(0, state.rows, torch.stack((lengths, tokens), dim=1))
