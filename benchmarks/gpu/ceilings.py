"""The device's ceilings, which are measured, and the lower bound that they give for the time of an operation.

    copy     bandwidth of a copy on the device; every byte counts twice, because it is read and written
    product  throughput of torch's product of large square matrices of random numbers

The lower bound for the time of an operation is the larger of bytes / copy and operations / product.
"""

from dataclasses import dataclass

import torch

from benchmarks.gpu.clock import Clock, interleaved
from benchmarks.gpu.device import RunDevice

_COPIED_BYTES = 2 << 30
_SIDE = 8192  # rows and columns of the multiplied matrices
_TINY_BYTES, _TINY_SIDE = 1 << 20, 64  # for rehearsals on a CPU
_REPEATS = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceilings:
    copy_bytes_per_second: float
    flops_per_second: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """The least work of an operation: each input is read once and each output written once.

    flops: multiplications and additions of matrix products.
    """

    num_bytes: int
    flops: int = 0

    def floor_seconds(self, ceilings: Ceilings) -> float:
        return max(self.num_bytes / ceilings.copy_bytes_per_second, self.flops / ceilings.flops_per_second)

    def bound(self, ceilings: Ceilings) -> str:
        by_bytes = self.num_bytes / ceilings.copy_bytes_per_second >= self.flops / ceilings.flops_per_second
        return "bandwidth" if by_bytes else "arithmetic"

    def share(self, seconds: float, ceilings: Ceilings) -> float:
        """Returns the lower bound of the time divided by the measured time; 1.0 is optimal."""
        return self.floor_seconds(ceilings) / seconds


def product_flops(m: int, n: int, k: int) -> int:
    """Returns the multiplications and additions of the product of an m x k and a k x n matrix."""
    return 2 * m * n * k


def copy_bandwidth(num_bytes: int, seconds: float) -> float:
    """Returns the bandwidth of a copy in bytes per second, counting each byte as read and as written."""
    return 2 * num_bytes / seconds


def measure(clock: Clock, run_device: RunDevice) -> Ceilings:
    num_bytes, side = (_TINY_BYTES, _TINY_SIDE) if run_device.is_rehearsal else (_COPIED_BYTES, _SIDE)
    source = torch.randint(0, 256, (num_bytes,), dtype=torch.uint8, device=run_device.device)
    target = torch.empty_like(source)
    left, right = (torch.randn(side, side, device=run_device.device, dtype=run_device.dtype) for _ in range(2))
    arms = {
        "copy": clock.prepared(lambda: target.copy_(source)),
        "product": clock.prepared(lambda: left @ right),
    }
    seconds = interleaved(arms, _REPEATS)
    return Ceilings(
        copy_bytes_per_second=copy_bandwidth(num_bytes, seconds["copy"].median),
        flops_per_second=product_flops(side, side, side) / seconds["product"].median,
    )
