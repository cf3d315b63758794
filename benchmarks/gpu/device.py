"""The device of a measurement.

Without a GPU, a benchmark can only be rehearsed: it runs with tiny sizes in Triton's interpreter. This shows that the
benchmark works, but the times are meaningless.

Importing this module on a machine without a GPU selects the interpreter. It must be imported before triton.
"""

from dataclasses import dataclass

import torch

from kernels.cuda.interpreter import interpret_without_gpu

interpret_without_gpu()


class NoGpuError(Exception):
    """CUDA was requested, but there is no GPU."""


@dataclass(frozen=True, slots=True)
class RunDevice:
    device: torch.device

    @classmethod
    def of(cls, name: str) -> "RunDevice":
        """Raises: NoGpuError."""
        if name == "cuda" and not torch.cuda.is_available():
            raise NoGpuError("there is no NVIDIA GPU; --device cpu rehearses the run at tiny sizes")
        return cls(torch.device(name))

    @property
    def is_rehearsal(self) -> bool:
        return self.device.type != "cuda"

    @property
    def dtype(self) -> torch.dtype:
        """bfloat16; rehearsals use float32, because the interpreter cannot multiply bfloat16."""
        return torch.float32 if self.is_rehearsal else torch.bfloat16
