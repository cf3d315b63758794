"""A CUDA graph without a GPU: a program's operations and kernels are written down once and run again as they were.

As in a graph, what is run again are operations on the very tensors of the first time, grids and numbers included; the
function itself is not asked any more. So whatever it would have looked up on the host (a Python number, a list, a shape
that changes) stays as it was, and answers go wrong. While it is written down, nothing may wait for a value, and no
tensor may be made of the host's numbers: on a GPU a capture would fail there.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves
from triton.runtime.interpreter import GridExecutor

from engine.rounds.device import Program
from tests.engine.rounds.late_device import LateDevice

_WAITS = ("_local_scalar_dense", "nonzero", "equal", "is_nonzero", "masked_select", "unique")
_FROM_HOST = ("lift_fresh",)
_launch = GridExecutor.__call__


class _Writer(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.steps: list[Program] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = func.name().removeprefix("aten::").split(".")[0]
        assert name not in _WAITS, f"{name} waits for the device"
        assert name not in _FROM_HOST, "a tensor is made of the host's numbers"
        made = func(*args, **(kwargs or {}))
        if name not in ("empty", "new_empty", "empty_like", "empty_strided", "new_empty_strided"):
            inside = {_storage(leaf) for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)}
            self.steps.append(lambda: _again(func, args, kwargs or {}, made, inside))
        return made

    def launch(self, executor: GridExecutor, *args: Any, **kwargs: Any) -> None:
        with _disable_current_modes():
            _launch(executor, *args, **kwargs)
        self.steps.append(lambda: _launch(executor, *args, **kwargs))


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _again(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], made: Any, inside: set[int]) -> None:
    for old, new in zip(tree_leaves(made), tree_leaves(func(*args, **kwargs)), strict=True):
        if isinstance(old, Tensor) and _storage(old) not in inside:
            old.copy_(new)


class _Captured:
    """As `engine.rounds.device._Graph`: the first time as it stands, the second written down, then only run again."""

    def __init__(self, function: Program) -> None:
        self._function = function
        self._runs = 0
        self._steps: list[Program] = []

    def __call__(self) -> None:
        self._runs += 1
        if self._runs == 1:
            self._function()
        elif self._runs == 2:
            with _Writer() as writer, pytest.MonkeyPatch.context() as patch:
                patch.setattr(GridExecutor, "__call__", lambda *args, **kwargs: writer.launch(*args, **kwargs))
                self._function()
            self._steps = writer.steps
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
        return sum(max(0, program._runs - 2) for program in self.programs)


def through_cuda_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors of the CPU go the way of a GPU's, through Triton's interpreter."""
    for target, replacement in _replacements():
        monkeypatch.setattr(target, replacement)


def _replacements() -> Iterator[tuple[str, Callable[..., Any]]]:
    from engine.rounds.choosing import DeviceChooser
    from engine.rounds.drafters.guesses import GuessHead
    from kernels.cuda import attention, filtered, lm_head, norm, tree, tree_rows
    from kernels.cuda import candidates as cuda_candidates
    from kernels.cuda.decoder import decoder
    from kernels.cuda.linear import linear as cuda_linear
    from kernels.cuda.linear import linear_parts
    from kernels.cuda.medusa import medusa_heads
    from kernels.linear import LinearWeight
    from kernels.lm_head import BestTokens, Head

    def whole(
        layers: Any, residual: Tensor, rows: Any, keys: Any, values: Any, taps: Any = (), *_: Any, **more: Any
    ) -> Any:
        return decoder(layers, residual, rows, keys, values, taps, more.get("beside"))

    def product(x: Tensor, weight: LinearWeight, *, add_to: Tensor | None = None) -> Tensor:
        return cuda_linear(x, weight.data, weight.scales, weight.bias, add_to)

    def best(head: GuessHead, x: Tensor, count: int) -> BestTokens:
        own = Head(data=head.weight.data, scales=head.weight.scales, vocab=head.vocab)
        return lm_head.best_tokens(x, own, min(count, head.weight.out_features), None)

    def heads(x: Tensor, weight: LinearWeight, num_heads: int) -> Tensor:
        return medusa_heads(x, linear_parts(x, weight.data, weight.scales, weight.bias), num_heads)

    def sample(x: Tensor, head: Head, rows: Any) -> Tensor:
        return lm_head.sample_rows(x, head, rows, None)

    for module in ("linear", "norm", "swiglu", "rope", "attention", "decoder"):
        yield f"kernels.{module}.library", lambda: None
    yield "kernels.cuda.decoder.attention", attention.attention
    for module in (
        "engine.model",
        "engine.drafters.eagle3_layer",
        "engine.drafters.mtp_layer",
        "engine.drafters.block_layers",
    ):
        yield f"{module}.decoder", whole
        yield f"{module}.linear", product
    for module in ("engine.drafters.eagle3_layer", "engine.drafters.mtp_layer", "engine.drafters.block_layers"):
        yield f"{module}.rms_norm", norm.rms_norm
    yield "engine.drafters.medusa.medusa_heads", heads
    yield "engine.rounds.runner.chooser_of", DeviceChooser
    yield "engine.rounds.runner.tree_rows", tree_rows.tree_rows
    yield "engine.rounds.runner.accept_trees", tree.accept_trees
    yield "engine.rounds.choosing.sample_rows", sample
    yield "engine.rounds.choosing.sample_filtered_rows", filtered.sample_filtered_rows
    yield "engine.rounds.drafters.guesses.GuessHead.best", best
    for module in ("guesses", "medusa", "block"):
        yield f"engine.rounds.drafters.{module}.candidates", cuda_candidates.candidates
    for module in ("medusa", "block"):
        yield f"engine.rounds.drafters.{module}.grow_trees", tree.grow_trees
