"""Data-parallel training with several processes, each of which has a copy of the target and of the speculator.

Before training, each process runs the target over a share of the conversations. In every step, each process computes
the loss of a share of the batch, and the gradients are summed. Then each process updates a share of the parameters and
broadcasts them. A process keeps the optimizer state and the best weights of only its share, because these tensors need
the most memory after the target.

    torchrun --nproc-per-node 2 -m workers.training MODEL PROMPTS.jsonl FOLDER

FSDP would also divide the weights and gradients, which are small compared with the target.

All processes make the same decisions, because rank 0 broadcasts every value that depends on a clock. Only rank 0 writes
checkpoints, artifacts and events.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
from torch import Tensor, distributed, nn

_LONGEST_WAIT = timedelta(days=2)  # other processes wait while rank 0 answers all prompts


@dataclass(frozen=True, slots=True)
class Processes:
    rank: int = 0
    count: int = 1

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def my_rows(self, rows: Tensor) -> Tensor:
        """Returns the rows of a batch that this process works on."""
        return rows[self.rank :: self.count]

    def is_mine(self, index: int) -> bool:
        """Tells whether this process works on the conversation of this index."""
        return index % self.count == self.rank

    def exchange(self, parts: Sequence[Tensor]) -> None:
        """Broadcasts part i from the process of rank i % count, without changing a bit. All parts are contiguous."""
        if self.count > 1:
            for index, part in enumerate(parts):
                distributed.broadcast(part.view(torch.uint8), index % self.count)  # as bytes: gloo supports few dtypes

    def all_reduce(self, tensors: Sequence[Tensor], numbers: Sequence[float]) -> list[float]:
        """Replaces each tensor by its sum over processes, and returns the sums of the numbers.

        All processes get the same bits.
        """
        if self.count == 1:
            return list(numbers)
        all_tensors = (*tensors, tensors[0].new_tensor(numbers))
        flat = torch.cat([tensor.flatten() for tensor in all_tensors])
        distributed.all_reduce(flat)
        totals = flat.split([tensor.numel() for tensor in all_tensors])
        for tensor, total in zip(tensors, totals, strict=False):  # the last total belongs to the numbers
            tensor.copy_(total.view_as(tensor))
        return [float(total) for total in totals[-1]]

    def my_share(self, parameters: Mapping[str, nn.Parameter]) -> dict[str, nn.Parameter]:
        """Returns the parameters that this process updates."""
        return {name: parameters[name] for name in _largest_first(parameters)[self.rank :: self.count]}

    def broadcast_updated(self, parameters: Mapping[str, nn.Parameter]) -> None:
        """Copies each parameter from the process that updates it to all others."""
        self.exchange([parameters[name].detach() for name in _largest_first(parameters)])

    def gather_to_rank0(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Returns the tensors of all processes if called by rank 0; other processes get back their own tensors.

        Args:
            tensors: tensors on the CPU. Different processes must use different names.
        """
        own = dict(tensors)
        if self.count == 1:
            return own
        gathered: list[dict[str, Tensor]] | None = [{}] * self.count if self.is_first else None
        distributed.gather_object(own, gathered)
        return {name: tensor for part in gathered or [own] for name, tensor in part.items()}

    def broadcast_from_rank0(self, value: float) -> float:
        if self.count == 1:
            return value
        shared = torch.tensor(value, dtype=torch.float64)
        distributed.broadcast(shared, 0)
        return float(shared)

    def wait_for_all(self) -> None:
        if self.count > 1:
            distributed.barrier()


def _largest_first(parameters: Mapping[str, nn.Parameter]) -> list[str]:
    """Returns names by decreasing size, so that taking every n-th name gives n shares of about the same size."""
    return sorted(parameters, key=lambda name: (-parameters[name].numel(), name))


ALONE = Processes()


@contextmanager
def joined_processes() -> Iterator[Processes]:
    """Yields the process group that torchrun started, or this process alone."""
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
