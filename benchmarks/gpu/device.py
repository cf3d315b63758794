"""The device of a measurement.

Without a GPU, a benchmark can only make a dry run, with tiny sizes and in Triton's interpreter. A dry run shows that
the benchmark works, but its times are meaningless.

Importing this module without a GPU selects the interpreter, which must happen before triton is imported.
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
            raise NoGpuError("there is no NVIDIA GPU; use --device cpu for a dry run with tiny sizes")
        return cls(torch.device(name))

    @property
    def is_dry_run(self) -> bool:
        return self.device.type != "cuda"

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of weights and inputs. Dry runs use float32, because the interpreter cannot multiply bfloat16."""
        return torch.float32 if self.is_dry_run else torch.bfloat16
