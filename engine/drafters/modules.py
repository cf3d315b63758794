"""Modules that several trained drafters use. Their parameters have the names of Llama's checkpoints."""

from torch import Tensor, nn
from torch.nn import functional


class Norm(nn.RMSNorm):
    """Computes in float32, also when autocast runs matrix products in bfloat16."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.float())


class GatedMlp(nn.Module):
    """Computes down(silu(gate x) * up x), as in Llama's layers."""

    def __init__(self, hidden_size: int, intermediate_size: int, *, bias: bool = False) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(hidden_size, intermediate_size, bias=bias)
        self.up_proj = nn.Linear(hidden_size, intermediate_size, bias=bias)
        self.down_proj = nn.Linear(intermediate_size, hidden_size, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))
        return out
