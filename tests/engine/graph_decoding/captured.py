"""Imitates CUDA graphs without a GPU: `CapturingDevice` records a program's operations and kernels, and replays them.

As in a CUDA graph, a replay runs the recorded operations on the recorded tensors, with the recorded grids and numbers,
and does not call the function again. A Python number or a shape that changes from call to call therefore keeps its
recorded value, and a program that depends on such a value returns wrong tokens. During the recording, the program may
neither wait for a value nor create a tensor from host numbers, because a real capture would fail there.
"""

from collections.abc import Sequence as Many
from functools import partial
from typing import Any

import pytest
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves
from triton.runtime.interpreter import GridExecutor

from engine.graph_decoding.device import Program
from engine.graph_decoding.drafters.candidate_head import CandidateHead
from engine.graph_decoding.sampling import DeviceTokenSampler
from kernels.cuda import attention, candidates, decoder, filtered, linear, lm_head, medusa, norm, tree, tree_rows
from kernels.decoder import DecoderLayers, DecoderRows
from kernels.linear import LinearWeight
from kernels.lm_head import BestTokens, Head
from tests.engine.graph_decoding.late_device import LateDevice

_WAITING_OPERATIONS = ("_local_scalar_dense", "nonzero", "equal", "is_nonzero", "masked_select", "unique")
_COPYING_OPERATIONS = ("lift_fresh",)
_launch = GridExecutor.__call__  # Triton's interpreter calls this to launch a kernel


class _Recorder(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.steps: list[Program] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = func.name().removeprefix("aten::").split(".")[0]
        assert name not in _WAITING_OPERATIONS, f"{name} waits for the device"
        assert name not in _COPYING_OPERATIONS, "a tensor is created from host numbers"
        result = func(*args, **(kwargs or {}))
        if name not in ("empty", "new_empty", "empty_like", "empty_strided", "new_empty_strided"):
            input_storages = {_storage(leaf) for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)}
            self.steps.append(lambda: _replay(func, args, kwargs or {}, result, input_storages))
        return result

    def launch(self, executor: GridExecutor, *args: Any, **kwargs: Any) -> None:
        with _disable_current_modes():
            _launch(executor, *args, **kwargs)
        self.steps.append(lambda: _launch(executor, *args, **kwargs))


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _replay(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any, input_storages: set[int]) -> None:
    """Runs an operation again and copies its results into the recorded tensors, except into views of its inputs."""
    for old, new in zip(tree_leaves(result), tree_leaves(func(*args, **kwargs)), strict=True):
        if isinstance(old, Tensor) and _storage(old) not in input_storages:
            old.copy_(new)


class _Captured:
    """Runs a program in the first call, records it in the second, and replays it later, like `device._Graph`."""

    def __init__(self, function: Program) -> None:
        self._function = function
        self._runs = 0
        self._steps: list[Program] = []

    def __call__(self) -> None:
        self._runs += 1
        if self._runs == 1:
            self._function()
        elif self._runs == 2:
            with _Recorder() as recorder, pytest.MonkeyPatch.context() as patch:
                patch.setattr(GridExecutor, "__call__", lambda *args, **kwargs: recorder.launch(*args, **kwargs))
                self._function()
            self._steps = recorder.steps
        else:
            for step in self._steps:
                step()


class CapturingDevice(LateDevice):
    def __init__(self) -> None:
        super().__init__()
        self.programs: list[_Captured] = []

    def program(self, function: Program) -> Program:
        captured = _Captured(function)
        self.programs.append(captured)
        return super().program(captured)

    @property
    def num_replays(self) -> int:
        return sum(max(0, program._runs - 2) for program in self.programs)  # the first run executes, the second records


def use_cuda_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the engine call the CUDA kernels for tensors on the CPU, in Triton's interpreter."""
    for module in ("linear", "norm", "swiglu", "rope", "attention", "decoder"):
        monkeypatch.setattr(f"kernels.{module}.library", lambda: None)
    monkeypatch.setattr("kernels.cuda.decoder.attention", attention.attention)
    for module in ("models.dense", "drafters.eagle3_layer", "drafters.mtp_layer", "drafters.block_layers"):
        monkeypatch.setattr(f"engine.{module}.decoder", _decoder)
        monkeypatch.setattr(f"engine.{module}.linear", _linear)
    for module in ("eagle3_layer", "mtp_layer", "block_layers"):
        monkeypatch.setattr(f"engine.drafters.{module}.rms_norm", norm.rms_norm)
    monkeypatch.setattr("engine.drafters.medusa.medusa_heads", _medusa_heads)
    monkeypatch.setattr("engine.graph_decoding.runner.token_sampler_for", DeviceTokenSampler)
    monkeypatch.setattr("engine.graph_decoding.runner.tree_rows", tree_rows.tree_rows)
    monkeypatch.setattr("engine.graph_decoding.runner.accept_trees", tree.accept_trees)
    monkeypatch.setattr("engine.graph_decoding.sampling.sample_rows", partial(lm_head.sample_rows, base=None))
    monkeypatch.setattr("engine.graph_decoding.sampling.sample_filtered_rows", filtered.sample_filtered_rows)
    monkeypatch.setattr(CandidateHead, "best", _best)
    for module in ("candidate_head", "medusa", "block"):
        monkeypatch.setattr(f"engine.graph_decoding.drafters.{module}.candidates", candidates.candidates)
    for module in ("medusa", "block"):
        monkeypatch.setattr(f"engine.graph_decoding.drafters.{module}.grow_trees", tree.grow_trees)


def _decoder(
    layers: DecoderLayers,
    residual: Tensor,
    rows: DecoderRows,
    keys: Many[Tensor],
    values: Many[Tensor],
    taps: Many[int] = (),
    *_: object,
    qkv_prefix: Tensor | None = None,
    **__: object,
) -> tuple[Tensor, Tensor | None]:
    return decoder.decoder(layers, residual, rows, keys, values, taps, qkv_prefix)


def _linear(x: Tensor, weight: LinearWeight, *, add_to: Tensor | None = None, one_sum: bool = False) -> Tensor:
    return linear.linear(x, weight.data, weight.scales, weight.bias, add_to, one_sum=one_sum)


def _medusa_heads(x: Tensor, weight: LinearWeight, num_heads: int) -> Tensor:
    parts = linear.linear_parts(x, weight.data, weight.scales, weight.bias)
    return medusa.medusa_heads(x, parts, num_heads)


def _best(head: CandidateHead, x: Tensor, count: int) -> BestTokens:
    kernel_head = Head(data=head.weight.data, scales=head.weight.scales, vocab=head.vocab)
    return lm_head.best_tokens(x, kernel_head, min(count, head.weight.out_features), None)
