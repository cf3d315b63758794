"""The training loop, which is the same for every method: optimizer, schedule, evaluation, early stopping, checkpoints.

A step depends only on the state before it, because its rows and all random draws follow from (seed, step). A run that
resumes from its last checkpoint therefore gives the same bits as an uninterrupted run, on the same machine with the
same build and the same numbers of threads and processes. The exception is a run with `max_seconds`, whose learning rate
depends on the clock.

    every step                    rows(step) ─▶ loss of each part ─▶ sum of gradients ─▶ clip ─▶ AdamW, Muon
    every `evaluate_every` steps  validate ─▶ keep the best weights ─▶ checkpoint
"""

import hashlib
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Generic, Protocol, Self, TypeVar

import torch
from torch import Tensor, nn

from workers.contracts import Checkpoint, Event, Metrics, Progress
from workers.emitter import Emit
from workers.hyperparameters.loop import LoopParameters
from workers.training.checkpoint import Snapshot, load_checkpoint_of, save_checkpoint
from workers.training.optimizers import (
    make_optimizers,
    optimizer_tensors,
    restore_optimizers,
    set_learning_rate,
)
from workers.training.processes import ALONE, Processes

_FINAL_LEARNING_RATE = 0.05  # relative to the highest learning rate
_LIVE_EVERY = 10  # between evaluations, the training loss is emitted every 10 steps


class Figures(Protocol):
    """The figures that a validation measures: a dataclass whose fields JSON can represent."""

    def is_better_than(self, other: Self) -> bool: ...

    def as_metrics(self) -> dict[str, float]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Validation:
    """Figures of a speculator, measured on the validation conversations."""

    acceptance_length: float  # tokens per verify pass, from simulated decoding with the drafter that is served
    acceptance_rate_per_position: tuple[float, ...]
    accuracy_per_depth: tuple[float, ...]
    loss: float  # nats per token; all depths have equal weight

    def is_better_than(self, other: Self) -> bool:
        return self.acceptance_length > other.acceptance_length

    def as_metrics(self) -> dict[str, float]:
        figures = {"validation_loss": self.loss, "acceptance_length": self.acceptance_length}
        return figures | {f"accuracy_depth_{i}": a for i, a in enumerate(self.accuracy_per_depth, start=1)}


F = TypeVar("F", bound=Figures)
_F = TypeVar("_F", bound=Figures, covariant=True)


class Method(Protocol[_F]):
    """The training method of a kind of speculator or of a fine-tuned adapter."""

    @property
    def module(self) -> nn.Module:
        """Returns the module whose parameters are trained, except those that require no gradient."""
        ...

    @property
    def num_rows(self) -> int: ...

    def loss(self, rows: Tensor, step: int) -> "BatchLoss":
        """Returns the loss of a batch of a training step. rows: [B] int64, distinct row numbers below `num_rows`."""
        ...

    def validate(self) -> _F: ...


@dataclass(frozen=True, slots=True)
class BatchLoss:
    total: Tensor  # scalar, differentiable; mean over tokens
    nats: float  # sum of the cross entropy over tokens and depths
    num_tokens: int  # number of terms of `nats`: a token counts once per depth


@dataclass(frozen=True, slots=True, kw_only=True)
class Progression(Generic[F]):
    """The loop's state except for tensors. Checkpoints store it as JSON."""

    step: int = 0
    elapsed_seconds: float = 0.0
    best_step: int = 0
    best: F | None = None  # the evaluation at `best_step`
    num_worse: int = 0  # number of evaluations since the best evaluation
    history: tuple[dict[str, float], ...] = ()  # one entry per evaluation
    stopped: str = ""  # why training ended: steps, seconds or patience; "" while training runs


@dataclass(frozen=True, slots=True)
class Outcome(Generic[F]):
    """The result of training. Afterwards, `method.module` has the best weights."""

    progression: Progression[F]
    validation: F  # of the best weights


def train(
    method: Method[Validation],
    config: LoopParameters,
    *,
    seed: int,
    checkpoint_dir: Path,
    emit: Emit,
    processes: Processes = ALONE,
    clock: Callable[[], float] = time.monotonic,
    taps: tuple[int, ...] = (),
) -> Outcome[Validation]:
    """Trains a speculator until a limit or early stopping ends the run.

    Starts from the newest undamaged checkpoint if there is one and it has the same `taps`.

    checkpoint_dir: a folder that all processes can read.
    taps: the hidden states that the speculator reads, if not those of earlier releases; weights only fit their taps.
    """
    order = RowOrder(method.num_rows, config.batch_rows * config.accumulate, seed)
    return train_in_order(
        method,
        config,
        order,
        figures=Validation,
        seed=seed,
        checkpoint_dir=checkpoint_dir,
        emit=emit,
        processes=processes,
        clock=clock,
        taps=taps,
    )


def train_in_order(
    method: Method[F],
    config: LoopParameters,
    order: "RowOrder",
    *,
    figures: Callable[..., F],
    seed: int,
    checkpoint_dir: Path,
    emit: Emit,
    processes: Processes = ALONE,
    clock: Callable[[], float] = time.monotonic,
    taps: tuple[int, ...] = (),
) -> Outcome[F]:
    """Works like `train`, for any method.

    order: the rows of each step.
    figures: makes the figures of a validation from their fields, which a checkpoint has stored.
    """
    return _Run(method, config, order, figures, seed, checkpoint_dir, emit, processes, clock, taps).run()


class _Run(Generic[F]):
    def __init__(
        self,
        method: Method[F],
        config: LoopParameters,
        order: "RowOrder",
        figures: Callable[..., F],
        seed: int,
        checkpoint_dir: Path,
        emit: Emit,
        processes: Processes,
        clock: Callable[[], float],
        taps: tuple[int, ...],
    ) -> None:
        self._method = method
        self._config = config
        self._seed = seed
        self._folder = checkpoint_dir
        self._emit_event = emit
        self._processes = processes
        self._clock = clock
        self._order = order
        self._taps = taps
        self._figures_type = figures
        self._total_steps = min(config.max_steps or math.inf, config.epochs * self._order.steps_per_epoch)
        self._parameters = {n: p for n, p in method.module.named_parameters() if p.requires_grad}
        self._owned = processes.my_share(self._parameters)  # the parameters that this process updates
        self._optimizers = make_optimizers(self._owned, config)
        self._best = _copies(self._owned)
        self._progress: Progression[F] = Progression()
        self._started = clock()
        self._window = _Window(self._started)  # sums since the last evaluation
        self._live = _Window(self._started)  # sums since the last event with the training loss

    def run(self) -> Outcome[F]:
        if (snapshot := load_checkpoint_of(self._folder, self._taps, deletes=self._processes.is_first)) is not None:
            self._restore(snapshot)
        else:
            self._evaluate()  # the initial weights are the result if training never improves them
        while not self._progress.stopped:
            self._step()
            if self._progress.stopped or self._progress.step % self._config.evaluate_every == 0:
                self._evaluate()
                self._checkpoint()
            elif self._progress.step % _LIVE_EVERY == 0:
                self._emit(Metrics(step=self._progress.step, data={"loss": self._live.loss, **self._speed(self._live)}))
                self._live = _Window(self._clock())
        self._emit(Progress(done=self._progress.step, total=self._progress.step, unit="steps"))
        with torch.no_grad():
            for name, parameter in self._owned.items():
                parameter.copy_(self._best[name])
        self._processes.broadcast_updated(self._parameters)
        self._method.module.eval()
        assert self._progress.best is not None, "the first evaluation always sets it"
        return Outcome(self._progress, self._progress.best)

    def _emit(self, event: Event) -> None:
        if self._processes.is_first:
            self._emit_event(event)

    def _step(self) -> None:
        factor = learning_rate_factor(self._progress.step, self._fraction_done(), self._config.warmup_steps)
        set_learning_rate(self._optimizers, self._config.learning_rate * factor)
        nats, num_tokens = self._add_gradients()
        nn.utils.clip_grad_norm_(self._parameters.values(), self._config.grad_clip)
        for optimizer in self._optimizers:
            optimizer.step()
        self._processes.broadcast_updated(self._parameters)
        elapsed = self._processes.broadcast_from_rank0(self._clock() - self._started)
        self._progress = replace(self._progress, step=self._progress.step + 1, elapsed_seconds=elapsed)
        if self._fraction_done() >= 1.0:
            self._progress = replace(
                self._progress, stopped="steps" if self._progress.step >= self._total_steps else "seconds"
            )
        for window in (self._window, self._live):
            window.nats, window.num_tokens = window.nats + nats, window.num_tokens + num_tokens
        self._emit(Progress(done=self._progress.step, total=int(self._total_steps), unit="steps"))

    def _add_gradients(self) -> tuple[float, int]:
        """Sets the gradients of the mean loss over all tokens of the step. Returns the step's nats and num_tokens."""
        torch.manual_seed(_step_seed(self._seed, self._progress.step, self._processes.rank))
        self._method.module.train()
        for parameter in self._parameters.values():
            parameter.grad = torch.zeros_like(parameter)
        sums = [0.0, 0.0]  # nats, tokens
        for part in self._order.batch(self._progress.step).tensor_split(self._config.accumulate):
            if len(own_rows := self._processes.my_rows(part)):
                loss = self._method.loss(own_rows, self._progress.step)
                torch.autograd.backward(loss.total * loss.num_tokens)
                sums = [sums[0] + loss.nats, sums[1] + loss.num_tokens]
        gradients = [parameter.grad for parameter in self._parameters.values() if parameter.grad is not None]
        nats, num_tokens = self._processes.all_reduce(gradients, sums)
        for gradient in gradients:
            gradient.div_(max(1, num_tokens))
        return nats, int(num_tokens)

    def _fraction_done(self) -> float:
        fraction_of_steps = self._progress.step / self._total_steps
        if self._config.max_seconds is None:
            return fraction_of_steps
        return min(1.0, max(fraction_of_steps, self._progress.elapsed_seconds / self._config.max_seconds))

    def _evaluate(self) -> None:
        self._method.module.eval()
        result = self._method.validate()
        is_better = self._progress.best is None or result.is_better_than(self._progress.best)
        better = self._processes.broadcast_from_rank0(float(is_better)) > 0.0
        if better:
            self._best = _copies(self._owned)
        num_worse = 0 if better else self._progress.num_worse + 1
        entry = self._figures(result)
        self._progress = replace(
            self._progress,
            best_step=self._progress.step if better else self._progress.best_step,
            best=result if better else self._progress.best,
            num_worse=num_worse,
            history=(*self._progress.history, {"step": float(self._progress.step), **entry}),
        )
        if not self._progress.stopped and 0 < self._config.patience <= num_worse:
            self._progress = replace(self._progress, stopped="patience")
        self._emit(Metrics(step=self._progress.step, data=entry | self._speed(self._window)))
        self._window, self._live = _Window(self._clock()), _Window(self._clock())

    def _figures(self, result: F) -> dict[str, float]:
        """Returns an entry of the history, which a resumed run repeats exactly. Before the first step, the entry has no
        `loss`."""
        figures = {**result.as_metrics(), "epoch": self._progress.step / self._order.steps_per_epoch}
        if self._window.num_tokens:
            figures["loss"] = self._window.loss
        return figures

    def _speed(self, window: "_Window") -> dict[str, float]:
        seconds = self._clock() - window.started
        if self._progress.step == 0 or seconds <= 0:
            return {}
        done = self._fraction_done()
        return {
            "tokens_per_second": window.num_tokens / seconds,
            "eta_seconds": self._progress.elapsed_seconds / done * (1.0 - done),
        }

    def _checkpoint(self) -> None:
        tensors = optimizer_tensors(self._owned, self._optimizers)
        for name, parameter in self._owned.items():
            tensors[f"weights.{name}"] = parameter.detach()
            tensors[f"best.{name}"] = self._best[name]
        tensors = self._processes.gather_to_rank0({name: tensor.cpu() for name, tensor in tensors.items()})
        if not self._processes.is_first:
            return
        snapshot = Snapshot(self._progress.step, tensors, self._state())
        path = save_checkpoint(self._folder, snapshot)
        self._emit(Checkpoint(path=str(path), step=self._progress.step))

    def _state(self) -> dict[str, object]:
        values = asdict(self._progress)
        del values["step"]  # `Snapshot.step` stores this number
        return values | ({"taps": self._taps} if self._taps else {})

    def _restore(self, snapshot: Snapshot) -> None:
        state, best = _with_tuples(snapshot.state), _with_tuples(snapshot.state["best"])
        state.pop("taps", None)
        self._progress = Progression(step=snapshot.step, **state | {"best": self._figures_type(**best)})
        self._started = self._clock() - self._progress.elapsed_seconds
        self._window, self._live = _Window(self._clock()), _Window(self._clock())
        with torch.no_grad():
            for name, parameter in self._parameters.items():
                parameter.copy_(snapshot.tensors[f"weights.{name}"])
        for name, parameter in self._owned.items():
            self._best[name] = snapshot.tensors[f"best.{name}"].to(parameter.device)
        restore_optimizers(self._owned, self._optimizers, snapshot.tensors)
        self._emit(Progress(done=self._progress.step, total=int(self._total_steps), unit="steps"))


@dataclass(slots=True)
class _Window:
    """Sums over the steps since `started`."""

    started: float
    nats: float = 0.0
    num_tokens: int = 0

    @property
    def loss(self) -> float:
        return self.nats / max(1, self.num_tokens)


class RowOrder:
    """Assigns rows to steps. Every epoch has a new permutation of the rows, which depends only on seed and epoch."""

    def __init__(self, num_rows: int, batch_rows: int, seed: int, *, drop_last: bool = True) -> None:
        """drop_last: whether the last rows of a permutation are skipped if they fill no batch."""
        if num_rows < 1:
            raise ValueError(f"training needs at least 1 row, got {num_rows}")
        self._drop_last = drop_last
        self._num_rows = num_rows
        self._batch_rows = min(batch_rows, num_rows)
        self._seed = seed
        self._epoch = -1
        self._permutation = torch.empty(0, dtype=torch.int64)

    @property
    def steps_per_epoch(self) -> int:
        num_whole, rest = divmod(self._num_rows, self._batch_rows)
        return num_whole + (rest > 0 and not self._drop_last)

    def batch(self, step: int) -> Tensor:
        epoch, batch = divmod(step, self.steps_per_epoch)
        if epoch != self._epoch:
            generator = torch.Generator().manual_seed((self._seed << 20) + epoch)  # distinct below 2**20 epochs
            self._permutation = torch.randperm(self._num_rows, generator=generator)
            self._epoch = epoch
        return self._permutation[batch * self._batch_rows : (batch + 1) * self._batch_rows]


def learning_rate_factor(step: int, fraction_done: float, warmup_steps: int) -> float:
    """Returns a factor that rises linearly during the warm-up and falls as a cosine to `_FINAL_LEARNING_RATE`."""
    warmup = min(1.0, (step + 1) / max(1, warmup_steps))
    cosine = 0.5 * (1.0 + math.cos(math.pi * fraction_done))
    return warmup * (_FINAL_LEARNING_RATE + (1.0 - _FINAL_LEARNING_RATE) * cosine)


def _step_seed(seed: int, step: int, rank: int) -> int:
    """Returns the seed of the step's random draws. It has 32 bits, because torch's CPU generator uses no more."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{step}/{rank}".encode()).digest()[:4])


def _with_tuples(values: Mapping[str, Any]) -> dict[str, Any]:
    """Restores the tuples that JSON stored as lists."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}


def _copies(parameters: Mapping[str, nn.Parameter]) -> dict[str, Tensor]:
    return {name: parameter.detach().clone() for name, parameter in parameters.items()}
