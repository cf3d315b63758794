"""Tests of the training loop. A linear regression takes the place of a speculator."""

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from tests.workers.support import Recorder
from workers.contracts import Event
from workers.emitter import Emit
from workers.hyperparameters.loop import LoopParameters
from workers.training import loop
from workers.training.loop import BatchLoss, Outcome, RowOrder, Validation, learning_rate_factor
from workers.training.optimizers import make_optimizers
from workers.training.processes import ALONE, Processes

CONFIG = LoopParameters(
    epochs=4,
    batch_rows=8,
    learning_rate=0.05,
    weight_decay=0.01,
    warmup_steps=3,
    grad_clip=1.0,
    evaluate_every=5,
    patience=0,
)


class Regression:
    """A linear regression with dropout on its inputs.

    lengths: returns the acceptance length of the n-th validation. None: the acceptance length rises as the error falls.
    noise: the probability of dropout.
    """

    def __init__(self, lengths: Callable[[int], float] | None = None, *, noise: float = 0.2) -> None:
        generator = torch.Generator().manual_seed(0)
        self._x = torch.randn(64, 4, generator=generator)
        self._y = self._x @ torch.tensor([1.0, -2.0, 3.0, 0.5])
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1)
            self._linear = nn.Linear(4, 1)
        self._lengths = lengths
        self._noise = noise
        self._num_validations = 0

    @property
    def module(self) -> nn.Module:
        return self._linear

    @property
    def num_rows(self) -> int:
        return 64

    def loss(self, rows: Tensor, step: int) -> BatchLoss:
        noisy = nn.functional.dropout(self._x[rows], self._noise)  # draws from torch's generator
        error = (self._linear(noisy).squeeze(-1) - self._y[rows]).square().mean()
        return BatchLoss(error, nats=float(error.detach()) * len(rows), num_tokens=len(rows))

    def validate(self) -> Validation:
        with torch.no_grad():
            error = float((self._linear(self._x).squeeze(-1) - self._y).square().mean())
        length = self._lengths(self._num_validations) if self._lengths else 1.0 + 1.0 / (1.0 + error)
        self._num_validations += 1
        return Validation(
            acceptance_length=length, acceptance_rate_per_position=(), accuracy_per_depth=(0.5,), loss=error
        )


def train(
    method: Regression,
    config: LoopParameters,
    *,
    checkpoint_dir: Path,
    emit: Emit,
    clock: Callable[[], float] = time.monotonic,
    taps: tuple[int, ...] = (),
) -> Outcome[Validation]:
    return loop.train(method, config, seed=3, checkpoint_dir=checkpoint_dir, emit=emit, clock=clock, taps=taps)


class Killed(Exception):
    pass


class KillAfter:
    """An `emit` function that raises `Killed` after `num_steps` progress events."""

    def __init__(self, num_steps: int) -> None:
        self._steps_left = num_steps

    def __call__(self, event: Event) -> None:
        if event.event == "progress":
            self._steps_left -= 1
            if self._steps_left < 0:
                raise Killed


def weights(method: Regression) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in method.module.parameters()]


def without_times(outcome: Outcome[Validation]) -> object:
    return replace(outcome.progression, elapsed_seconds=0.0), outcome.validation


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
@pytest.mark.parametrize("killed_after", [2, 5, 7, 13, 31])
def test_a_run_killed_at_any_step_ends_with_the_same_bits_as_an_undisturbed_run(
    tmp_path: Path, killed_after: int, optimizer: str
) -> None:
    config, undisturbed = replace(CONFIG, optimizer=optimizer), Regression()
    expected = train(undisturbed, config, checkpoint_dir=tmp_path / "a", emit=Recorder())
    with pytest.raises(Killed):
        train(Regression(), config, checkpoint_dir=tmp_path / "b", emit=KillAfter(killed_after))
    torch.manual_seed(999)  # a new process has another state of torch's generator
    resumed = Regression()
    found = train(resumed, config, checkpoint_dir=tmp_path / "b", emit=Recorder())
    assert all(torch.equal(a, b) for a, b in zip(weights(undisturbed), weights(resumed), strict=True))
    assert without_times(found) == without_times(expected)


def test_training_begins_again_if_the_checkpoints_were_made_for_other_taps(tmp_path: Path) -> None:
    expected = train(Regression(), CONFIG, checkpoint_dir=tmp_path / "a", emit=Recorder(), taps=(1, 2, 4))
    with pytest.raises(Killed):  # in an earlier release, whose checkpoints state no taps
        train(Regression(), CONFIG, checkpoint_dir=tmp_path / "b", emit=KillAfter(13))

    emit = Recorder()
    found = train(Regression(), CONFIG, checkpoint_dir=tmp_path / "b", emit=emit, taps=(1, 2, 4))
    assert min(event.step for event in emit.of("checkpoint")) == 5
    assert without_times(found) == without_times(expected)
    again = Recorder()
    train(Regression(), CONFIG, checkpoint_dir=tmp_path / "b", emit=again, taps=(1, 2, 4))
    assert again.of("checkpoint") == []  # it resumed from the last step


def test_training_resumes_from_the_previous_checkpoint_with_the_same_result_if_the_newest_is_damaged(
    tmp_path: Path,
) -> None:
    undisturbed = Regression()
    train(undisturbed, CONFIG, checkpoint_dir=tmp_path / "a", emit=Recorder())
    with pytest.raises(Killed):
        train(Regression(), CONFIG, checkpoint_dir=tmp_path / "b", emit=KillAfter(13))
    newest = max((tmp_path / "b").iterdir()) / "tensors.safetensors"
    data = bytearray(newest.read_bytes())
    data[-1] ^= 1
    newest.write_bytes(data)
    resumed, emit = Regression(), Recorder()
    train(resumed, CONFIG, checkpoint_dir=tmp_path / "b", emit=emit)
    # Checkpoint 10 is damaged, so the run resumes from checkpoint 5 and writes checkpoint 10 again.
    assert next(event.step for event in emit.of("checkpoint")) == 10
    assert all(torch.equal(a, b) for a, b in zip(weights(undisturbed), weights(resumed), strict=True))


def test_accumulating_small_batches_gives_the_weights_of_one_large_batch(tmp_path: Path) -> None:
    whole, parts = Regression(noise=0.0), Regression(noise=0.0)
    train(whole, CONFIG, checkpoint_dir=tmp_path / "a", emit=Recorder())
    train(parts, replace(CONFIG, batch_rows=2, accumulate=4), checkpoint_dir=tmp_path / "b", emit=Recorder())
    for a, b in zip(weights(whole), weights(parts), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)  # the order of additions differs


def test_muon_updates_matrices_and_adamw_the_other_parameters() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4))
    muon, adamw = make_optimizers(dict(module.named_parameters()), replace(CONFIG, optimizer="muon"))
    shapes = [[tuple(p.shape) for group in o.param_groups for p in group["params"]] for o in (muon, adamw)]
    assert shapes == [[(4, 4)], [(4,), (4,), (4,)]]
    assert isinstance(muon, torch.optim.Muon)


def test_each_parameter_is_updated_by_one_process_and_the_shares_have_about_the_same_size() -> None:
    sizes = {"a": 8, "b": 7, "c": 2, "d": 1, "e": 1}
    parameters = {name: nn.Parameter(torch.zeros(size)) for name, size in sizes.items()}
    shares = [Processes(rank, 2).my_share(parameters) for rank in range(2)]
    assert sorted([*shares[0], *shares[1]]) == list(sizes)
    assert [sum(sizes[name] for name in share) for share in shares] == [11, 8]
    assert ALONE.my_share(parameters) == parameters


def test_the_loss_is_reported_every_ten_steps_between_evaluations(tmp_path: Path) -> None:
    emit = Recorder()
    train(Regression(), replace(CONFIG, evaluate_every=15), checkpoint_dir=tmp_path, emit=emit)
    between = [event for event in emit.of("metrics") if "acceptance_length" not in event.data]
    assert [event.step for event in between] == [10, 20]  # the loss of step 30 is reported with its evaluation
    assert between[0].data.keys() == {"loss", "tokens_per_second", "eta_seconds"}


def test_restarting_a_finished_run_does_not_train_further(tmp_path: Path) -> None:
    first = Regression()
    train(first, CONFIG, checkpoint_dir=tmp_path, emit=Recorder())
    again, emit = Regression(), Recorder()
    train(again, CONFIG, checkpoint_dir=tmp_path, emit=emit)
    assert all(torch.equal(a, b) for a, b in zip(weights(first), weights(again), strict=True))
    assert emit.of("metrics") == []


def test_the_result_has_the_weights_of_the_best_evaluation_not_of_the_last_one(tmp_path: Path) -> None:
    lengths = [1.0, 1.5, 2.5, 2.0, 2.2, 2.1, 2.4, 1.0]  # of the evaluations at steps 0, 5, 10, ...
    method = Regression(lambda n: lengths[min(n, 7)])
    outcome = train(method, CONFIG, checkpoint_dir=tmp_path / "a", emit=Recorder())
    stopped = Regression(lambda n: lengths[min(n, 7)])
    # With patience 1, this run ends at step 15, one evaluation after the best one.
    train(stopped, replace(CONFIG, patience=1), checkpoint_dir=tmp_path / "b", emit=Recorder())
    assert outcome.progression.best_step == 10
    assert outcome.validation.acceptance_length == 2.5
    assert all(torch.equal(a, b) for a, b in zip(weights(method), weights(stopped), strict=True))


def test_patience_ends_a_run_that_does_not_improve(tmp_path: Path) -> None:
    method = Regression(lambda n: 3.0 - n)
    outcome = train(method, replace(CONFIG, patience=2), checkpoint_dir=tmp_path, emit=Recorder())
    assert (outcome.progression.stopped, outcome.progression.step, outcome.progression.best_step) == ("patience", 10, 0)


def test_a_run_ends_after_max_seconds(tmp_path: Path) -> None:
    seconds = iter(range(10_000))  # every reading of the clock advances it by a second
    config = replace(CONFIG, max_seconds=9.0)
    outcome = train(Regression(), config, checkpoint_dir=tmp_path, emit=Recorder(), clock=lambda: float(next(seconds)))
    assert outcome.progression.stopped == "seconds"
    assert 0 < outcome.progression.step < 9


def test_events_report_loss_acceptance_speed_and_remaining_time(tmp_path: Path) -> None:
    emit = Recorder()
    train(Regression(), CONFIG, checkpoint_dir=tmp_path, emit=emit)
    assert [event.step for event in emit.of("metrics")] == [0, 5, 10, 15, 20, 25, 30, 32]
    data = emit.of("metrics")[1].data
    assert data.keys() >= {"loss", "acceptance_length", "accuracy_depth_1", "tokens_per_second", "eta_seconds"}
    assert [event.step for event in emit.of("checkpoint")] == [5, 10, 15, 20, 25, 30, 32]
    assert (emit.of("progress")[-1].done, emit.of("progress")[-1].total) == (32, 32)


def test_every_epoch_has_every_row_once_in_a_new_order() -> None:
    order = RowOrder(12, 4, seed=0)
    epochs = [torch.cat([order.batch(3 * epoch + i) for i in range(3)]) for epoch in range(2)]
    assert [sorted(epoch.tolist()) for epoch in epochs] == [list(range(12))] * 2
    assert epochs[0].tolist() != epochs[1].tolist()


def test_the_rows_of_a_step_do_not_depend_on_steps_requested_before() -> None:
    only_step_8, all_steps = RowOrder(10, 3, seed=1), RowOrder(10, 3, seed=1)
    for step in range(8):
        all_steps.batch(step)
    assert torch.equal(only_step_8.batch(8), all_steps.batch(8))


def test_the_learning_rate_rises_during_the_warm_up_and_then_falls() -> None:
    factors = [learning_rate_factor(step, step / 100, 10) for step in range(101)]  # 10 warm-up steps
    assert factors[0] == pytest.approx(0.1)
    assert max(range(101), key=factors.__getitem__) in range(8, 11)
    assert factors[9:] == sorted(factors[9:], reverse=True)
    assert factors[100] == pytest.approx(0.05)
