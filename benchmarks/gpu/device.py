"""Where a measurement runs. Without a GPU it is a rehearsal: small, in Triton's interpreter, its times meaningless.

Importing this module asks for the interpreter where there is no GPU, which has to happen before triton is loaded.
"""

import os
from pathlib import Path

if not Path("/dev/nvidiactl").exists():
    os.environ.setdefault("TRITON_INTERPRET", "1")

from dataclasses import dataclass

import torch


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
        """bfloat16; the interpreter's product of bfloat16 is wrong, so a rehearsal takes float32."""
        return torch.float32 if self.is_rehearsal else torch.bfloat16
