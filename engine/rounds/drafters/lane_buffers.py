"""What a drafter keeps of each lane between rounds."""

import torch
from torch import Tensor

from engine.rounds.device import Device
from engine.rounds.lanes import Lanes


class LaneBuffers:
    """A vector or some of each lane, and whether they belong to the lane's last token."""

    def __init__(self, lanes: Lanes, device: Device, width: int, dtypes: tuple[torch.dtype, ...]) -> None:
        tables = lanes.slot_tables
        self._device = device
        self._vectors = [torch.zeros(tables.shape[0], width, dtype=dtype, device=tables.device) for dtype in dtypes]
        self._ready = torch.zeros(tables.shape[0], dtype=torch.int64, device=tables.device)

    def enter(self, row: int, vectors: tuple[Tensor, ...] | None) -> None:
        """vectors: [H] each, where the drafter on the host knows them."""
        self._device.put(self._ready[row], torch.tensor(int(vectors is not None)))
        for own, vector in zip(self._vectors, vectors or (), strict=False):
            self._device.put(own[row], vector)

    def read(self, rows: Tensor) -> tuple[list[Tensor], Tensor]:
        """[B, H] each, and [B] int64: 1 where they are known."""
        return [own[rows] for own in self._vectors], self._ready[rows]

    def write(self, rows: Tensor, vectors: tuple[Tensor, ...]) -> None:
        for own, vector in zip(self._vectors, vectors, strict=True):
            own.index_copy_(0, rows, vector)
        self._ready.index_fill_(0, rows, 1)
