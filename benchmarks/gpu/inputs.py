"""Random inputs for kernels, and the sizes of a model that determine their shapes."""

from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks.gpu.device import RunDevice
from benchmarks.gpu.shapes import SHAPES


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int

    @classmethod
    def of(cls, model: str) -> "Sizes":
        values = SHAPES[model]
        return cls(
            hidden_size=values["hidden_size"],
            intermediate_size=values["intermediate_size"],
            num_heads=values["num_attention_heads"],
            num_kv_heads=values["num_key_value_heads"],
            head_dim=values["head_dim"],
            vocab_size=values["vocab_size"],
        )


class Inputs:
    """Creates random inputs on the device. The seed is recorded with the results."""

    def __init__(self, run_device: RunDevice, seed: int) -> None:
        self.dtype, self.device = run_device.dtype, run_device.device
        self._generator = torch.Generator(run_device.device).manual_seed(seed)

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self._generator, device=self.device, dtype=self.dtype)

    def uniform(self, *shape: int) -> Tensor:
        """Returns float32 numbers from 0 to 1, excluding 1."""
        return torch.rand(shape, generator=self._generator, device=self.device)

    def integers(self, high: int, *shape: int) -> Tensor:
        """Returns int64 numbers from 0 to high - 1."""
        return torch.randint(0, high, shape, generator=self._generator, device=self.device)

    def permutation(self, count: int) -> Tensor:
        return torch.randperm(count, generator=self._generator, device=self.device)
