"""The device's measured peak rates, and the lower bound that they give for the time of an operation (roofline model).

    copy     bandwidth of a copy on the device, counting each byte as read and as written
    product  throughput of torch's product of large square matrices of random numbers

An operation takes at least max(bytes / copy bandwidth, floating-point operations / product throughput).
"""

from dataclasses import dataclass

import torch

from benchmarks.gpu.clock import Clock, interleaved
from benchmarks.gpu.device import RunDevice

_COPIED_BYTES = 2 << 30
_SIDE = 8192  # rows and columns of the multiplied matrices
_TINY_BYTES, _TINY_SIDE = 1 << 20, 64  # in dry runs
_REPEATS = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class PeakRates:
    copy_bytes_per_second: float
    flops_per_second: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """The work that an operation cannot avoid.

    num_bytes: bytes of all inputs and outputs, each read or written once.
    flops: multiplications and additions of matrix products.
    """

    num_bytes: int
    flops: int = 0

    def lower_bound_seconds(self, peak_rates: PeakRates) -> float:
        return max(self.num_bytes / peak_rates.copy_bytes_per_second, self.flops / peak_rates.flops_per_second)

    def bound(self, peak_rates: PeakRates) -> str:
        by_bytes = self.num_bytes / peak_rates.copy_bytes_per_second >= self.flops / peak_rates.flops_per_second
        return "bandwidth" if by_bytes else "arithmetic"

    def share(self, seconds: float, peak_rates: PeakRates) -> float:
        """Returns the lower bound of the time divided by the measured time; 1.0 is optimal."""
        return self.lower_bound_seconds(peak_rates) / seconds


def product_flops(m: int, n: int, k: int) -> int:
    """Returns the multiplications and additions of the product of an m x k and a k x n matrix."""
    return 2 * m * n * k


def copy_bandwidth(num_bytes: int, seconds: float) -> float:
    """Returns the bandwidth of a copy in bytes per second, counting each byte as read and as written."""
    return 2 * num_bytes / seconds


def measure(clock: Clock, run_device: RunDevice) -> PeakRates:
    num_bytes, side = (_TINY_BYTES, _TINY_SIDE) if run_device.is_dry_run else (_COPIED_BYTES, _SIDE)
    source = torch.randint(0, 256, (num_bytes,), dtype=torch.uint8, device=run_device.device)
    target = torch.empty_like(source)
    left, right = (torch.randn(side, side, device=run_device.device, dtype=run_device.dtype) for _ in range(2))
    timed_runs = {
        "copy": clock.prepared(lambda: target.copy_(source)),
        "product": clock.prepared(lambda: left @ right),
    }
    seconds = interleaved(timed_runs, _REPEATS)
    return PeakRates(
        copy_bytes_per_second=copy_bandwidth(num_bytes, seconds["copy"].median),
        flops_per_second=product_flops(side, side, side) / seconds["product"].median,
    )
