"""Trackers receive metrics, and their errors do not reach the run."""

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


class Told:
    """A tracker that records values; `trouble` is called with each of them."""

    def __init__(self, trouble: Any = None) -> None:
        self.values: list[tuple[int, Mapping[str, float]]] = []
        self.is_closed = False
        self._trouble = trouble

    def __call__(self, run: TrackedRun) -> "Told":
        return self

    __name__ = "Told"

    def log(self, step: int, values: Mapping[str, float]) -> None:
        if self._trouble is not None:
            self._trouble()
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
    trackers = [Told(), Told()]

    assert emit_all(tmp_path, *trackers).events == EVENTS

    for tracker in trackers:
        assert tracker.values == [(1, {"loss": 2.0}), (2, {"loss": 1.0})]
        assert tracker.is_closed


def test_a_tracker_that_raises_is_dropped_and_the_others_continue(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise RuntimeError("no network")

    broken, healthy = Told(fail), Told()

    assert emit_all(tmp_path, broken, healthy).events == EVENTS

    assert len(healthy.values) == 2
    assert broken.is_closed
    assert caplog.text.count("metrics are no longer tracked there") == 1


def test_a_tracker_that_cannot_start_is_dropped(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def absent(run: TrackedRun) -> Told:
        raise ModuleNotFoundError("No module named 'mlflow'")

    assert emit_all(tmp_path, absent).events == EVENTS
    assert "absent failed" in caplog.text


def test_a_hanging_tracker_is_waited_for_only_a_limited_time(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    end = threading.Event()
    hanging, healthy = Told(end.wait), Told()
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
        with tracked(recorder, make_run(tmp_path), [Told(end.wait)], last_seconds=0.1) as emit:
            for step in range(2000):
                emit(Metrics(step=step, data={}))
    finally:
        end.set()

    assert len(recorder.events) == 2000
    assert caplog.text.count("cannot keep up") == 1


def test_the_environment_selects_the_trackers(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("SLIPSTREAM_TRACKERS", raising=False)
    assert configured_trackers() == [TensorBoard]
    monkeypatch.setenv("SLIPSTREAM_TRACKERS", "wandb, mlflow,nonsense")
    with caplog.at_level(logging.ERROR):
        assert configured_trackers() == [TensorBoard, Wandb, Mlflow]
    assert "nonsense" in caplog.text


def stand_in(monkeypatch: pytest.MonkeyPatch, name: str, **functions: Any) -> None:
    module = ModuleType(name)
    vars(module).update(functions)
    monkeypatch.setitem(sys.modules, name, module)


def test_mlflow_gets_parameters_and_metrics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    calls: list[Any] = []
    stand_in(
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
    stand_in(monkeypatch, "wandb", init=lambda **values: settings.update(values) or run)

    emit_all(tmp_path, Wandb)

    assert (settings["mode"], settings["dir"], settings["id"]) == ("offline", str(tmp_path), "job_1")
    assert calls == [(1, {"loss": 2.0}), (2, {"loss": 1.0}), "end"]
