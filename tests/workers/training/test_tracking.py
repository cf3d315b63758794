"""Experiment trackers receive the metrics of a training run, and their failures do not affect the run."""

import logging
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tests.workers.support import Recorder
from workers.contracts import Event, Metrics, Progress
from workers.training.tracking import Mlflow, TensorBoard, TrackedRun, Wandb, configured_trackers, tracked

EVENTS: list[Event] = [
    Metrics(step=1, data={"loss": 2.0}),
    Progress(done=1, total=2, unit="steps"),
    Metrics(step=2, data={"loss": 1.0}),
]


def make_run(folder: Path) -> TrackedRun:
    return TrackedRun(name="job_1", folder=folder, parameters={"method": "medusa"})


class FakeTracker:
    """Records values. before_log: is called before a value is recorded; may raise or block."""

    def __init__(self, before_log: Any = None) -> None:
        self.values: list[tuple[int, Mapping[str, float]]] = []
        self.is_closed = False
        self._before_log = before_log

    def __call__(self, run: TrackedRun) -> "FakeTracker":
        return self

    __name__ = "FakeTracker"

    def log(self, step: int, values: Mapping[str, float]) -> None:
        if self._before_log is not None:
            self._before_log()
        self.values.append((step, values))

    def close(self) -> None:
        self.is_closed = True


def emit_all(folder: Path, *trackers: Any, last_seconds: float = 5.0) -> Recorder:
    recorder = Recorder()
    with tracked(recorder, make_run(folder), trackers, last_seconds=last_seconds) as emit:
        for event in EVENTS:
            emit(event)
    return recorder


def test_every_tracker_gets_all_metrics_in_order_and_is_closed(tmp_path: Path) -> None:
    trackers = [FakeTracker(), FakeTracker()]

    assert emit_all(tmp_path, *trackers).events == EVENTS

    for tracker in trackers:
        assert tracker.values == [(1, {"loss": 2.0}), (2, {"loss": 1.0})]
        assert tracker.is_closed


def test_a_tracker_that_raises_gets_no_more_metrics_and_other_trackers_continue(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise RuntimeError("no network")

    broken, healthy = FakeTracker(fail), FakeTracker()

    assert emit_all(tmp_path, broken, healthy).events == EVENTS

    assert len(healthy.values) == 2
    assert broken.is_closed
    assert caplog.text.count("metrics are no longer tracked there") == 1


def test_a_run_continues_without_a_tracker_that_cannot_start(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def absent(run: TrackedRun) -> FakeTracker:
        raise ModuleNotFoundError("No module named 'mlflow'")

    assert emit_all(tmp_path, absent).events == EVENTS
    assert "absent failed" in caplog.text


def test_an_ended_run_waits_only_a_limited_time_for_a_hanging_tracker(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    end = threading.Event()
    hanging, healthy = FakeTracker(end.wait), FakeTracker()
    try:
        assert emit_all(tmp_path, hanging, healthy, last_seconds=0.2).events == EVENTS
    finally:
        end.set()

    assert healthy.is_closed
    assert "has not finished" in caplog.text


def test_a_tracker_that_falls_behind_does_not_delay_the_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    end = threading.Event()
    recorder = Recorder()
    try:
        with tracked(recorder, make_run(tmp_path), [FakeTracker(end.wait)], last_seconds=0.1) as emit:
            for step in range(2000):  # more than may be queued for a tracker
                emit(Metrics(step=step, data={}))
    finally:
        end.set()

    assert len(recorder.events) == 2000
    assert caplog.text.count("cannot keep up") == 1


def test_an_environment_variable_selects_the_trackers(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("SLIPSTREAM_TRACKERS", raising=False)
    assert configured_trackers() == [TensorBoard]
    monkeypatch.setenv("SLIPSTREAM_TRACKERS", "wandb, mlflow,nonsense")
    with caplog.at_level(logging.ERROR):
        assert configured_trackers() == [TensorBoard, Wandb, Mlflow]
    assert "nonsense" in caplog.text


def install_fake_module(monkeypatch: pytest.MonkeyPatch, name: str, **functions: Any) -> None:
    module = ModuleType(name)
    vars(module).update(functions)
    monkeypatch.setitem(sys.modules, name, module)


def test_mlflow_gets_parameters_and_metrics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    calls: list[Any] = []
    install_fake_module(
        monkeypatch,
        "mlflow",
        set_tracking_uri=lambda uri: calls.append(uri),
        start_run=lambda run_name: calls.append(run_name),
        log_params=lambda values: calls.append(values),
        log_metrics=lambda values, step: calls.append((step, values)),
        end_run=lambda: calls.append("end"),
    )

    emit_all(tmp_path, Mlflow)

    metrics = [(1, {"loss": 2.0}), (2, {"loss": 1.0})]
    assert calls == [f"sqlite:///{tmp_path}/mlflow/mlflow.db", "job_1", {"method": "medusa"}, *metrics, "end"]


def test_wandb_is_offline_by_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WANDB_MODE", "WANDB_DIR", "WANDB_PROJECT"):
        monkeypatch.delenv(name, raising=False)
    settings: dict[str, Any] = {}
    calls: list[Any] = []
    run = SimpleNamespace(log=lambda values, step: calls.append((step, values)), finish=lambda: calls.append("end"))
    install_fake_module(monkeypatch, "wandb", init=lambda **values: settings.update(values) or run)

    emit_all(tmp_path, Wandb)

    assert (settings["mode"], settings["dir"], settings["id"]) == ("offline", str(tmp_path), "job_1")
    assert calls == [(1, {"loss": 2.0}), (2, {"loss": 1.0}), "end"]
