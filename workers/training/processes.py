"""Training by several processes: each has both models, runs the target over a share of the conversations, once, and
takes a share of every batch; gradients are added up. Each moves a share of the parameters and tells the others, so that
the optimizer's state and the best weights so far, which are most of what training needs beside the target, lie in one
process only.

    torchrun --nproc-per-node 2 -m workers.training MODEL PROMPTS.jsonl FOLDER

Weights and gradients are whole in every process, as FSDP's would not be: they are small beside the target, of which
every process holds a copy, too.

All take the same decisions: what depends on a clock is told by the first, which alone writes files and events.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
from torch import Tensor, distributed, nn

_LONGEST_WAIT = timedelta(days=2)  # the first answers prompts while the others wait


@dataclass(frozen=True, slots=True)
class Processes:
    rank: int = 0
    count: int = 1

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def my_rows(self, rows: Tensor) -> Tensor:
        """Of a batch."""
        return rows[self.rank :: self.count]

    def is_mine(self, index: int) -> bool:
        """Of the conversations."""
        return index % self.count == self.rank

    def exchange(self, parts: Sequence[Tensor]) -> None:
        """Each part is filled in by the process whose it is, and then by all, to the same bits. All are contiguous."""
        if self.count > 1:
            for index, part in enumerate(parts):
                distributed.broadcast(part.view(torch.uint8), index % self.count)  # as bytes: gloo knows few dtypes

    def add_up(self, tensors: Sequence[Tensor], numbers: Sequence[float]) -> list[float]:
        """Replaces each tensor by its sum over processes, to the same bits in all. Returns the sums of the numbers."""
        if self.count == 1:
            return list(numbers)
        own = tensors[0].new_tensor(numbers)
        flat = torch.cat([tensor.flatten() for tensor in (*tensors, own)])
        distributed.all_reduce(flat)
        totals = flat.split([tensor.numel() for tensor in (*tensors, own)])
        for tensor, total in zip(tensors, totals, strict=False):
            tensor.copy_(total.view_as(tensor))
        return [float(total) for total in totals[-1]]

    def my_share(self, parameters: Mapping[str, nn.Parameter]) -> dict[str, nn.Parameter]:
        """Those that this process moves."""
        return {name: parameters[name] for name in _largest_first(parameters)[self.rank :: self.count]}

    def share(self, parameters: Mapping[str, nn.Parameter]) -> None:
        """Each becomes what the process has made of it whose share it is in."""
        self.exchange([parameters[name].detach() for name in _largest_first(parameters)])

    def told_to_first(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Those of all processes, which have different names; in the others, their own. All are on the CPU."""
        own = dict(tensors)
        if self.count == 1:
            return own
        told: list[dict[str, Tensor]] | None = [{}] * self.count if self.is_first else None
        distributed.gather_object(own, told)
        return {name: tensor for part in told or [own] for name, tensor in part.items()}

    def told_by_first(self, value: float) -> float:
        if self.count == 1:
            return value
        told = torch.tensor(value, dtype=torch.float64)
        distributed.broadcast(told, 0)
        return float(told)

    def wait_for_all(self) -> None:
        if self.count > 1:
            distributed.barrier()


def _largest_first(parameters: Mapping[str, nn.Parameter]) -> list[str]:
    """So that shares are of about one size."""
    return sorted(parameters, key=lambda name: (-parameters[name].numel(), name))


ALONE = Processes()


@contextmanager
def joined_processes() -> Iterator[Processes]:
    """Those that torchrun started, or this one alone."""
    count = int(os.environ.get("WORLD_SIZE", "1"))
    if count == 1:
        yield ALONE
        return
    backend = "gloo"
    if torch.cuda.is_available():
        backend = "cpu:gloo,cuda:nccl"
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    distributed.init_process_group(backend, timeout=_LONGEST_WAIT)
    try:
        yield Processes(distributed.get_rank(), count)
    finally:
        distributed.destroy_process_group()
