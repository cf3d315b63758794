"""Mixtures of experts: computes, for each row, the weighted sum of the experts that the row has chosen.

    out[m] = sum_k weights[m, k] expert_{chosen[m, k]}(x[m])
    expert(x) = down(gate(gate_up(x)))

All rows of an expert are multiplied together, so its weights are read once. A row has the same bits in any batch:
`linear` does not depend on the other rows, and the experts of a row are added in ascending order of their indices.

M rows of the hidden size H choose K of E experts, which have the intermediate size I.
"""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from kernels.checks import DTYPE_CODES, check_tensor
from kernels.cpu import structures
from kernels.cpu.library import library
from kernels.linear import LinearWeight, linear
from kernels.swiglu import swiglu

_BLOCK = 32  # outputs per packed block, as in cpu/ops.h


@dataclass(frozen=True, slots=True)
class Expert:
    gate_up: LinearWeight  # [2 I, H]; the gate's rows come first
    down: LinearWeight  # [H, I]


@dataclass(frozen=True, slots=True)
class ClampedGate:
    """out = (up + 1) gate sigmoid(alpha gate), with gate at most `limit` and up in -limit .. limit, as in gpt-oss."""

    alpha: float
    limit: float


@dataclass(frozen=True, slots=True)
class Stack:
    """A weight of all experts on CUDA. data: [E, N, K]. scales, bias: [E, N] float32."""

    data: Tensor
    scales: Tensor | None
    bias: Tensor | None


class Experts:
    """E experts of the same shapes and formats.

    experts: the weights of each expert. On CUDA they are views of `gate_up` and `down`.
    gate: None for SwiGLU.
    structure: the arguments of the C kernel; None if the C kernel does not support these experts.
    """

    def __init__(self, experts: Sequence[Expert], gate: ClampedGate | None = None) -> None:
        self.experts = tuple(experts)
        self.gate = gate
        self.structure: structures.Experts | None = None
        first = self.experts[0]
        if first.gate_up.data.is_cuda:
            self.gate_up, gate_ups = _stacked([expert.gate_up for expert in experts])
            self.down, downs = _stacked([expert.down for expert in experts])
            self.experts = tuple(map(Expert, gate_ups, downs))
        elif first.gate_up.packed and first.down.in_features % _BLOCK == 0:
            self.structure = self._build()

    def _build(self) -> structures.Experts:
        pairs = [(structures.Linear.of(expert.gate_up), structures.Linear.of(expert.down)) for expert in self.experts]
        # this array is stored, because the structure below holds only its address
        self._c_experts = (structures.Expert * len(pairs))(*(structures.Expert(*pair) for pair in pairs))
        down, gate = self.experts[0].down, self.gate or ClampedGate(0.0, 0.0)  # a limit of 0 stands for SwiGLU
        sizes = (len(pairs), down.out_features, down.in_features)
        array = ctypes.addressof(self._c_experts)
        return structures.Experts(array, *sizes, gate.alpha, gate.limit, DTYPE_CODES[down.dtype])


def add_experts(products: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
    """Adds the products of experts with the same bits as the compiled `mix_experts`; on the CPU only.

    Args:
        products: [M, K, H] float32, the outputs of the experts that each row has chosen.
        chosen: [M, K] int64, different experts in each row. weights: [M, K] float32.

    Returns: [M, H] float32.
    Raises: ValueError: shapes or dtypes do not fit, or the kernels are not compiled.
    """
    (M, K), H, kernels = chosen.shape, products.shape[2], library()
    check_tensor(products, "products", (M, K, H), torch.float32)
    check_tensor(chosen, "chosen", (M, K), torch.int64)
    check_tensor(weights, "weights", (M, K), torch.float32)
    if kernels is None:
        raise ValueError("products of experts are only added by the compiled kernels")
    order = chosen.argsort(dim=1)  # ascending experts
    places = order + K * torch.arange(M).unsqueeze(1)
    ordered, out = weights.gather(1, order), torch.empty(M, H)
    addresses = (products.data_ptr(), places.data_ptr(), ordered.data_ptr(), out.data_ptr())
    kernels.slipstream_add_experts(*addresses, M, K, H, 0)
    return out


def _stacked(weights: Sequence[LinearWeight]) -> tuple[Stack, list[LinearWeight]]:
    """Copies the weights into one tensor. Returns it, and the weights as views of it."""

    def joined(parts: list[Tensor | None]) -> Tensor | None:
        given = [part for part in parts if part is not None]
        return torch.stack(given) if given else None

    stack = Stack(
        torch.stack([w.data for w in weights]), joined([w.scales for w in weights]), joined([w.bias for w in weights])
    )
    return stack, [replace(weight, data=stack.data[index]) for index, weight in enumerate(weights)]


def clamped_gate(x: Tensor, gate: ClampedGate, dtype: torch.dtype) -> Tensor:
    """x [M, 2 I] float32, of which the first I columns are the gate -> [M, I] in `dtype`."""
    gates, ups = x.chunk(2, dim=-1)
    gates, ups = gates.clamp(max=gate.limit), ups.clamp(-gate.limit, gate.limit)
    return (gates / (1 + torch.exp(-gate.alpha * gates)) * (ups + 1)).to(dtype)


def mix_experts_reference(x: Tensor, chosen: Tensor, weights: Tensor, experts: Experts) -> Tensor:
    """Reference of `mix_experts`. It computes one expert after the other."""
    out = torch.zeros(x.shape, device=x.device)
    for index in chosen.unique().tolist():  # ascending
        rows, ranks = (chosen == index).nonzero(as_tuple=True)
        expert = experts.experts[index]
        inner = linear(x[rows], expert.gate_up)  # [n, 2 I]
        gated = swiglu(inner, x.dtype) if experts.gate is None else _in_rows(inner, experts.gate, x.dtype)
        out[rows] += linear(gated, expert.down) * weights[rows, ranks].unsqueeze(1)
    return out


def _in_rows(x: Tensor, gate: ClampedGate, dtype: torch.dtype) -> Tensor:
    """Calls `clamped_gate` for each row, so that a row has the same bits in any batch.

    In a larger tensor, torch rounds the last elements, which do not fill a vector register, differently from the
    elements before them.
    """
    return torch.cat([clamped_gate(row, gate, dtype) for row in x.split(1)])


def mix_experts(
    x: Tensor, chosen: Tensor, weights: Tensor, experts: Experts, *, add_to: Tensor | None = None
) -> Tensor:
    """Computes the weighted sum of each row's experts, without host synchronization on CUDA.

    Args:
        x: [M, H] in the experts' dtype.
        chosen: [M, K] int64, different experts in each row. weights: [M, K] float32.

    Returns: [M, H] float32, added to `add_to` in place if given.
    Raises: ValueError: shapes or dtypes do not fit. MemoryError: there is no memory for intermediate results.
    """
    M, H, first = x.shape[0], experts.experts[0].down.out_features, experts.experts[0]
    check_tensor(x, "x", (M, first.gate_up.in_features), first.gate_up.dtype)
    check_tensor(chosen, "chosen", (M, None), torch.int64)
    check_tensor(weights, "weights", tuple(chosen.shape), torch.float32)
    if add_to is not None:
        check_tensor(add_to, "add_to", (M, H), torch.float32)
    if x.is_cuda:
        from kernels.cuda.experts import mix_experts as launch  # imported here, because triton requires CUDA

        return launch(x, chosen, weights, experts, add_to)
    kernels = library()
    if kernels is None or experts.structure is None:
        mixed = mix_experts_reference(x, chosen, weights, experts)
        return mixed if add_to is None else add_to.add_(mixed)
    out = torch.empty(M, H) if add_to is None else add_to
    arguments = (chosen.data_ptr(), weights.data_ptr(), out.data_ptr(), M, chosen.shape[1], int(add_to is not None))
    if kernels.slipstream_experts(ctypes.addressof(experts.structure), x.data_ptr(), *arguments) != 0:
        raise MemoryError(f"no memory for the experts of {M} rows")
    return out
