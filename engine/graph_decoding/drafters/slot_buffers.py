"""Stores the state of a drafter for each batch slot between graph steps."""

import torch
from torch import Tensor

from engine.graph_decoding.batch_slots import BatchSlots
from engine.graph_decoding.device import Device


class BatchSlotBuffers:
    """One or more vectors per batch slot, and whether they are valid for the sequence's last token."""

    def __init__(self, batch_slots: BatchSlots, device: Device, width: int, dtypes: tuple[torch.dtype, ...]) -> None:
        tables = batch_slots.slot_tables
        self._device = device
        self._vectors = [torch.zeros(tables.shape[0], width, dtype=dtype, device=tables.device) for dtype in dtypes]
        self._ready = torch.zeros(tables.shape[0], dtype=torch.int64, device=tables.device)

    def load(self, row: int, vectors: tuple[Tensor, ...] | None) -> None:
        """Sets the state of a batch slot to the state of the drafter on the host.

        vectors: [H] each; None if the drafter on the host has no state for the sequence.
        """
        self._device.put(self._ready[row], torch.tensor(int(vectors is not None)))
        for own, vector in zip(self._vectors, vectors or (), strict=False):
            self._device.put(own[row], vector)

    def read(self, rows: Tensor) -> tuple[list[Tensor], Tensor]:
        """Returns the vectors, [B, H] each, and whether they are valid, [B] int64: 1 or 0."""
        return [own[rows] for own in self._vectors], self._ready[rows]

    def write(self, rows: Tensor, vectors: tuple[Tensor, ...]) -> None:
        for own, vector in zip(self._vectors, vectors, strict=True):
            own.index_copy_(0, rows, vector)
        self._ready.index_fill_(0, rows, 1)
