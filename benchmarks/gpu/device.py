"""Where a measurement runs. Without a GPU it is a rehearsal: small, in Triton's interpreter, its times meaningless.

Importing this module selects the interpreter where there is no GPU, because that must precede the import of triton.
"""

from dataclasses import dataclass

import torch

from kernels.cuda.interpreter import interpret_without_gpu

interpret_without_gpu()


class NoGpuError(Exception):
    """CUDA was asked for and there is none."""


@dataclass(frozen=True, slots=True)
class Place:
    device: torch.device

    @classmethod
    def of(cls, name: str) -> "Place":
        """Raises: NoGpuError."""
        if name == "cuda" and not torch.cuda.is_available():
            raise NoGpuError("no NVIDIA GPU is at hand; --device cpu rehearses the run at tiny sizes")
        return cls(torch.device(name))

    @property
    def is_rehearsal(self) -> bool:
        return self.device.type != "cuda"

    @property
    def dtype(self) -> torch.dtype:
        """bfloat16; the interpreter has no product of bfloat16, so a rehearsal takes float32."""
        return torch.float32 if self.is_rehearsal else torch.bfloat16
