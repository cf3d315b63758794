"""The training loop of every method: optimizer, schedule, evaluation, early stopping, checkpoints.

A step is a pure function of the snapshot before it: the batch follows from (seed, step), all other randomness from
torch's generator, which the snapshot holds. So a run killed anywhere goes on from its last checkpoint to the same bits
(same machine, build and number of threads). A budget in seconds gives this up: its schedule follows the clock.

    snapshot ─ batch(step) ─ loss ─ clip ─ AdamW ─ every n steps: validate, keep the best, checkpoint
"""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor, nn

from workers.contracts import Checkpoint, Metrics, Progress
from workers.emitter import Emit
from workers.training.checkpoint import Snapshot, load_newest_checkpoint, save_checkpoint

_BETAS = (0.9, 0.95)
_FINAL_LEARNING_RATE = 0.05  # of the highest
_MOMENTS = ("exp_avg", "exp_avg_sq")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopConfig:
    epochs: int
    batch_rows: int
    learning_rate: float
    weight_decay: float
    warmup_steps: int
    grad_clip: float
    evaluate_every: int
    patience: int  # 0: never stop early
    seed: int
    max_steps: int | None = None
    max_seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Validation:
    """Figures on conversations that are never trained on."""

    acceptance_length: float  # simulated as served
    acceptance_rate_per_position: tuple[float, ...]
    accuracy_per_depth: tuple[float, ...]
    loss: float  # nats per token, all depths alike


class Method(Protocol):
    """A kind of speculator under training."""

    @property
    def module(self) -> nn.Module:
        """All its parameters are trained."""
        ...

    @property
    def num_rows(self) -> int: ...

    def loss(self, rows: Tensor) -> "BatchLoss":
        """rows: [B] int64, distinct numbers below `num_rows`."""
        ...

    def validate(self) -> Validation: ...


@dataclass(frozen=True, slots=True)
class BatchLoss:
    total: Tensor  # scalar, differentiable
    nats: float  # sum over tokens and depths
    num_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Progression:
    """What the loop remembers beside tensors; JSON in a checkpoint."""

    step: int = 0
    elapsed_seconds: float = 0.0
    best_step: int = 0
    best_acceptance_length: float = 0.0
    num_worse: int = 0  # evaluations in a row without a new best
    history: tuple[dict[str, float], ...] = ()  # one entry per evaluation
    stopped: str = ""  # why it ended: steps, seconds or patience; "" while it runs


@dataclass(frozen=True, slots=True)
class Outcome:
    """`method.module` holds the best weights when this is returned."""

    progression: Progression
    validation: Validation  # of the best weights


def train(
    method: Method,
    config: LoopConfig,
    *,
    checkpoint_dir: Path,
    emit: Emit,
    clock: Callable[[], float] = time.monotonic,
) -> Outcome:
    """Trains to the end, from the newest whole checkpoint if there is one."""
    return _Run(method, config, checkpoint_dir, emit, clock).to_the_end()


class _Run:
    def __init__(
        self, method: Method, config: LoopConfig, checkpoint_dir: Path, emit: Emit, clock: Callable[[], float]
    ) -> None:
        self._method = method
        self._config = config
        self._folder = checkpoint_dir
        self._emit = emit
        self._clock = clock
        torch.manual_seed(config.seed)
        self._order = RowOrder(method.num_rows, config.batch_rows, config.seed)
        self._total_steps = min(config.max_steps or math.inf, config.epochs * self._order.steps_per_epoch)
        self._parameters = dict(method.module.named_parameters())
        self._optimizer = torch.optim.AdamW(
            self._parameters.values(), lr=config.learning_rate, betas=_BETAS, weight_decay=config.weight_decay
        )
        self._best = _copies(self._parameters)
        self._at = Progression()
        self._started = clock()
        self._nats, self._num_tokens, self._num_rows = 0.0, 0, 0  # since the last evaluation
        self._window_started = self._started

    def to_the_end(self) -> Outcome:
        if (snapshot := load_newest_checkpoint(self._folder)) is not None:
            self._restore(snapshot)
        else:
            self._evaluate()  # untrained: what an early stop falls back to
        while not self._at.stopped:
            self._step()
            if self._at.stopped or self._at.step % self._config.evaluate_every == 0:
                self._evaluate()
                self._checkpoint()
        self._emit(Progress(done=self._at.step, total=self._at.step, unit="steps"))
        with torch.no_grad():
            for name, parameter in self._parameters.items():
                parameter.copy_(self._best[name])
        return Outcome(self._at, self._method.validate())

    def _step(self) -> None:
        for group in self._optimizer.param_groups:
            group["lr"] = self._config.learning_rate * learning_rate_factor(
                self._at.step, self._fraction_done(), self._config.warmup_steps
            )
        self._method.module.train()
        loss = self._method.loss(self._order.batch(self._at.step))
        self._optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(loss.total)
        nn.utils.clip_grad_norm_(self._parameters.values(), self._config.grad_clip)
        self._optimizer.step()
        self._nats += loss.nats
        self._num_tokens += loss.num_tokens
        self._num_rows += self._config.batch_rows
        self._at = replace(self._at, step=self._at.step + 1, elapsed_seconds=self._clock() - self._started)
        if self._fraction_done() >= 1.0:
            self._at = replace(self._at, stopped="steps" if self._at.step >= self._total_steps else "seconds")
        self._emit(Progress(done=self._at.step, total=int(self._total_steps), unit="steps"))

    def _fraction_done(self) -> float:
        of_steps = self._at.step / self._total_steps
        if self._config.max_seconds is None:
            return of_steps
        return min(1.0, max(of_steps, self._at.elapsed_seconds / self._config.max_seconds))

    def _evaluate(self) -> None:
        self._method.module.eval()
        found = self._method.validate()
        better = found.acceptance_length > self._at.best_acceptance_length
        if better:
            self._best = _copies(self._parameters)
        num_worse = 0 if better else self._at.num_worse + 1
        entry = self._figures(found)
        self._at = replace(
            self._at,
            best_step=self._at.step if better else self._at.best_step,
            best_acceptance_length=max(found.acceptance_length, self._at.best_acceptance_length),
            num_worse=num_worse,
            history=(*self._at.history, {"step": float(self._at.step), **entry}),
        )
        if not self._at.stopped and 0 < self._config.patience <= num_worse:
            self._at = replace(self._at, stopped="patience")
        self._emit(Metrics(step=self._at.step, data=entry | self._speed()))
        self._nats, self._num_tokens, self._num_rows = 0.0, 0, 0
        self._window_started = self._clock()

    def _figures(self, found: Validation) -> dict[str, float]:
        """Those that a resumed run repeats exactly; `loss` is there once a step was made."""
        figures = {
            "validation_loss": found.loss,
            "acceptance_length": found.acceptance_length,
            "epoch": self._at.step / self._order.steps_per_epoch,
        }
        if self._num_tokens:
            figures["loss"] = self._nats / self._num_tokens
        return figures | {f"accuracy_depth_{i}": a for i, a in enumerate(found.accuracy_per_depth, start=1)}

    def _speed(self) -> dict[str, float]:
        seconds = self._clock() - self._window_started
        if self._at.step == 0 or seconds <= 0:
            return {}
        done = self._fraction_done()
        return {
            "tokens_per_second": self._num_rows / seconds,
            "eta_seconds": self._at.elapsed_seconds / done * (1.0 - done),
        }

    def _checkpoint(self) -> None:
        tensors: dict[str, Tensor] = {"random_state": torch.get_rng_state()}
        for name, parameter in self._parameters.items():
            tensors[f"weights.{name}"] = parameter.detach()
            tensors[f"best.{name}"] = self._best[name]
            for moment in _MOMENTS:
                tensors[f"{moment}.{name}"] = self._optimizer.state[parameter][moment]
        snapshot = Snapshot(self._at.step, {k: v.cpu() for k, v in tensors.items()}, self._state())
        path = save_checkpoint(self._folder, snapshot)
        self._emit(Checkpoint(path=str(path), step=self._at.step))

    def _state(self) -> dict[str, object]:
        values = asdict(self._at)
        del values["step"]  # the snapshot's own
        return values

    def _restore(self, snapshot: Snapshot) -> None:
        state = {**snapshot.state, "history": tuple(snapshot.state["history"])}
        self._at = Progression(step=snapshot.step, **state)
        self._started = self._clock() - self._at.elapsed_seconds
        self._window_started = self._clock()
        with torch.no_grad():
            for name, parameter in self._parameters.items():
                parameter.copy_(snapshot.tensors[f"weights.{name}"])
                self._best[name] = snapshot.tensors[f"best.{name}"].to(parameter.device)
                self._optimizer.state[parameter] = {
                    "step": torch.tensor(float(snapshot.step)),
                    **{m: snapshot.tensors[f"{m}.{name}"].to(parameter.device) for m in _MOMENTS},
                }
        torch.set_rng_state(snapshot.tensors["random_state"])
        self._emit(Progress(done=self._at.step, total=int(self._total_steps), unit="steps"))


class RowOrder:
    """Which rows each step takes: every epoch a new permutation, drawn from seed and epoch alone."""

    def __init__(self, num_rows: int, batch_rows: int, seed: int) -> None:
        if num_rows < 1:
            raise ValueError(f"training needs at least 1 row, got {num_rows}")
        self._num_rows = num_rows
        self._batch_rows = min(batch_rows, num_rows)
        self._seed = seed
        self._epoch = -1
        self._permutation = torch.empty(0, dtype=torch.int64)

    @property
    def steps_per_epoch(self) -> int:
        return self._num_rows // self._batch_rows  # what is left over sits this epoch out

    def batch(self, step: int) -> Tensor:
        epoch, place = divmod(step, self.steps_per_epoch)
        if epoch != self._epoch:
            generator = torch.Generator().manual_seed((self._seed << 20) + epoch)
            self._permutation = torch.randperm(self._num_rows, generator=generator)
            self._epoch = epoch
        return self._permutation[place * self._batch_rows : (place + 1) * self._batch_rows]


def learning_rate_factor(step: int, fraction_done: float, warmup_steps: int) -> float:
    """Rises linearly over the warm-up, falls as a cosine to `_FINAL_LEARNING_RATE`."""
    warmup = min(1.0, (step + 1) / max(1, warmup_steps))
    cosine = 0.5 * (1.0 + math.cos(math.pi * fraction_done))
    return warmup * (_FINAL_LEARNING_RATE + (1.0 - _FINAL_LEARNING_RATE) * cosine)


def _copies(parameters: Mapping[str, nn.Parameter]) -> dict[str, Tensor]:
    return {name: parameter.detach().clone() for name, parameter in parameters.items()}
