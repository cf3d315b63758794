"""Where the sequences stand, on the device: what a round reads and moves on without the host.

A sequence's lane is its row of the cache's slot tables; the last row is nobody's and fills rounds up to their size.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from engine.kv_cache import KVCache
from engine.request import SamplingParams
from engine.rounds.device import Device
from engine.sequence import Sequence
from kernels.candidates import RowSampling

_SIGN = 2**63


def is_filtered(sampling: SamplingParams) -> bool:
    return sampling.temperature > 0.0 and (sampling.top_k > 0 or sampling.top_p < 1.0 or sampling.min_p > 0.0)


@dataclass(frozen=True, slots=True)
class LaneState:
    """Of B lanes.

    rows: [B] int64, of the slot tables.
    lengths, tokens, ends: [B] int64. Number of tokens, the last of them, and how many there may ever be.
    adapters: [B] int64. Place of each one's adapter in the stacks, -1 of none.
    sampling: of their next tokens.
    """

    rows: Tensor
    lengths: Tensor
    tokens: Tensor
    ends: Tensor
    adapters: Tensor
    sampling: RowSampling

    def sampling_below(self, depths: Tensor) -> RowSampling:
        """[B n]: of the tokens that come `depths` [n] or [B, n] int64 positions after the next one."""
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


class Lanes:
    def __init__(self, cache: KVCache, device: Device) -> None:
        self.slot_tables = cache.slot_tables
        self.padding_row = cache.slot_tables.shape[0] - 1
        self.padding_slot = cache.num_slots
        self._device = device
        num_lanes = cache.slot_tables.shape[0]
        # length, last token, end, adapter, seed, top_k; temperature, top_p, min_p: of a lane beside each other
        nobodys = torch.tensor((1, 0, 1, -1, 0, 0), device=cache.slot_tables.device)
        self._integers = nobodys.repeat(num_lanes, 1)
        self._floats = torch.zeros(num_lanes, 3, dtype=torch.float64, device=cache.slot_tables.device)
        self.slot_tables[self.padding_row] = self.padding_slot

    def enter(self, sequence: Sequence, adapter: int) -> None:
        """From now on the device knows where the sequence stands; `adapter`: its place in the stacks, -1 of none."""
        sampling, prompt = sequence.request.sampling, sequence.request.prompt_token_ids
        seed = (sampling.seed + _SIGN) % 2**64 - _SIGN
        end = len(prompt) + sampling.max_tokens
        integers = (len(sequence.tokens), sequence.tokens[-1], end, adapter, seed, sampling.top_k)
        floats = (sampling.temperature, sampling.top_p, sampling.min_p)
        self._device.put(self._integers[sequence.table_row], torch.tensor(integers, dtype=torch.int64))
        self._device.put(self._floats[sequence.table_row], torch.tensor(floats, dtype=torch.float64))

    def place(self, row: int, length: int) -> None:
        """A lane of nobody's, for measurements: `length` tokens in slots of its own, as far as there are any."""
        slots = torch.arange(row * length, (row + 1) * length, dtype=torch.int32) % self.padding_slot
        self._device.put(self.slot_tables[row, :length], slots)
        self._device.put(self._integers[row], torch.tensor((length, 0, length, -1, 0, 0), dtype=torch.int64))

    def state(self, rows: Tensor) -> LaneState:
        """rows: [B] int64."""
        lengths, tokens, ends, adapters, seeds, top_ks = self._integers[rows].T.contiguous().unbind()
        temperatures, top_ps, min_ps = self._floats[rows].T.contiguous().unbind()
        sampling = RowSampling(
            temperatures=temperatures, seeds=seeds, positions=lengths, top_ks=top_ks, top_ps=top_ps, min_ps=min_ps
        )
        return LaneState(rows, lengths, tokens, ends, adapters, sampling)

    def move_on(self, state: LaneState, counts: Tensor, tokens: Tensor) -> None:
        """By counts + 1 tokens [B], the last of which are `tokens` [B]; never past an answer's end.

        What a finished answer's lane does afterwards is surplus, for nobody to read: it stays where it is.
        """
        moved = torch.minimum(state.lengths + counts + 1, state.ends)
        self._integers[:, :2].index_copy_(0, state.rows, torch.stack((moved, tokens), dim=1))
