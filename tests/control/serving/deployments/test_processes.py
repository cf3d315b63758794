"""Signals to the processes of endpoints."""

import os
import signal

import pytest

from control.serving.deployments.launchers.processes import ProcessIdentity


@pytest.mark.parametrize("pid", [0, 1])
def test_no_signal_is_sent_to_process_id_0_or_1(monkeypatch: pytest.MonkeyPatch, pid: int) -> None:
    """killpg(0) would signal the supervisor's own group, killpg(1) every process of the machine."""
    signalled: list[tuple[int, signal.Signals]] = []
    for name in ("kill", "killpg"):
        monkeypatch.setattr(os, name, lambda pid, number: signalled.append((pid, number)))
    monkeypatch.setattr(ProcessIdentity, "is_alive", lambda identity: True)

    ProcessIdentity(pid, "").kill()
    ProcessIdentity(pid, "").terminate()
    assert signalled == []

    ProcessIdentity(4_194_305, "").kill()  # one more than the largest pid of Linux
    assert signalled == [(4_194_305, signal.SIGKILL)]
