"""The group of processes (ranks) that run one model, and its collective operations.

All ranks must call the same methods in the same order.

Tensors are exchanged as bytes, so no exchange can change a number.
"""

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import FileStore
from torch.nn.functional import pad

from engine.tensor_parallel.parent import RENDEZVOUS_VARIABLE, group_rank

# An exchange waits until the other ranks take part, and an idle server has nothing to exchange. The parent process, not
# a time limit, ends a group that has lost a rank.
_NEVER = timedelta(days=365)


@dataclass(frozen=True, slots=True)
class Group:
    rank: int
    degree: int

    def gather(self, part: Tensor, widths: Sequence[int]) -> Tensor:
        """Returns the ranks' parts side by side on every rank.

        part: [M, widths[rank]], contiguous. Returns [M, sum(widths)].
        """
        sent = _padded(part, max(widths))
        received = sent.new_empty(self.degree, *sent.shape)
        dist.all_gather([_bytes(block) for block in received], _bytes(sent))
        return _side_by_side(received, widths)

    def gather_to_first(self, part: Tensor, widths: Sequence[int]) -> Tensor | None:
        """Returns the result of `gather` on rank 0, and None on the other ranks."""
        sent = _padded(part, max(widths))
        if self.rank != 0:
            dist.gather(_bytes(sent), None, dst=0)
            return None
        received = sent.new_empty(self.degree, *sent.shape)
        dist.gather(_bytes(sent), [_bytes(block) for block in received], dst=0)
        return _side_by_side(received, widths)

    def broadcast(self, tensor: Tensor) -> Tensor:
        """Overwrites the contiguous tensor with rank 0's tensor, and returns it."""
        dist.broadcast(_bytes(tensor), src=0)
        return tensor


def join_group(degree: int) -> Group:
    """Joins the group that the parent process has started (engine/tensor_parallel/parent.py); waits for all ranks."""
    rank = group_rank()
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo0" if sys.platform == "darwin" else "lo")
    store = FileStore(str(Path(os.environ[RENDEZVOUS_VARIABLE]) / "store"), degree)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=degree, timeout=_NEVER)
    return Group(rank, degree)


def _padded(part: Tensor, width: int) -> Tensor:
    return part.contiguous() if part.shape[1] == width else pad(part, (0, width - part.shape[1]))


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.view(-1).view(torch.uint8)


def _side_by_side(received: Tensor, widths: Sequence[int]) -> Tensor:
    return torch.cat([block[:, :width] for block, width in zip(received, widths, strict=True)], dim=1)
