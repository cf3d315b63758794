"""A worker stays alive for the others while one of its chores takes long."""

import threading

import pytest
from pytest_django import Settings

from control.core.settings.config import get_config
from workers.supervisor import worker as worker_module
from workers.supervisor.worker import JobWorker


def test_a_slow_chore_does_not_delay_heartbeats(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test needs no database: all steps but the heartbeats and the chores fail, and failures are logged."""
    settings.SLIPSTREAM = get_config().model_copy(update={"reconcile_seconds": 0.01})
    chore_began, chore_may_end, beats = threading.Event(), threading.Event(), threading.Semaphore(0)
    renewals = threading.Semaphore(0)

    def slow_chores(self: JobWorker, chores: object) -> None:
        chore_began.set()
        chore_may_end.wait(30)

    monkeypatch.setattr(JobWorker, "_do_chores", slow_chores)
    monkeypatch.setattr(worker_module, "worker_beat", lambda **_: beats.release())
    monkeypatch.setattr(worker_module, "devices_renew", renewals.release)
    monkeypatch.setattr(worker_module, "close_old_connections", lambda: None)
    worker = JobWorker()
    threads = (worker._heart, worker._housekeeper)
    try:
        for thread in threads:
            thread.start()
        assert chore_began.wait(30)
        for _ in range(100):  # more than the housekeeper could have written before the chore began
            assert beats.acquire(timeout=30)
            assert renewals.acquire(timeout=30)
    finally:
        worker.stop.set()
        chore_may_end.set()
        for thread in threads:
            thread.join(30)
