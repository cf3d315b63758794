"""The parent process of a group ends all ranks as soon as one rank ends, and prints the reason."""

import json
import os
import queue
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from engine.tensor_parallel.parent import LOST_GROUP, PARENT_MODULE, first_to_end
from tests.engine.server.live import wait_until

Start = Callable[..., "Running"]


class Running:
    def __init__(self, folder: Path, modes: tuple[str, ...]) -> None:
        arguments = [str(len(modes)), "tests.engine.tensor_parallel.light_rank", str(folder)]
        arguments += [f"{rank}:{mode}" for rank, mode in enumerate(modes)]
        command = [sys.executable, "-m", PARENT_MODULE, *arguments]
        self.parent = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self._files = [folder / str(rank) for rank in range(len(modes))]

    def pids(self) -> list[int]:
        """Waits until all ranks run, and returns their process ids."""
        wait_until(lambda: all(file.exists() for file in self._files), timeout_seconds=60)
        return [int(file.read_text()) for file in self._files]

    def end(self) -> tuple[int, list[str]]:
        """Waits until the group ends. Returns the exit status and the lines of standard output."""
        output, _ = self.parent.communicate(timeout=60)
        return self.parent.returncode, output.splitlines()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started: list[Running] = []

    def run(*modes: str) -> Running:
        started.append(Running(tmp_path, modes))
        return started[-1]

    yield run
    for running in started:
        running.parent.kill()
        running.parent.communicate()


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def message_of(lines: list[str]) -> str:
    """Returns the failure message from the last line. Only output of rank 0 may precede this line."""
    assert lines[:-1] in ([], ["rank 0 speaks"])
    failure = json.loads(lines[-1])
    assert (failure["event"], failure["code"]) == ("failed", "rank_lost")
    return str(failure["message"])


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_a_killed_rank_ends_the_group_with_a_reason(start: Start, rank: int) -> None:
    group = start("wait", "wait", "wait")
    pids = group.pids()

    os.kill(pids[rank], signal.SIGKILL)

    status, lines = group.end()
    assert status == 1
    assert message_of(lines) == f"rank {rank} of 3 was killed by SIGKILL, so the group was ended"
    assert not any(map(is_running, pids))


def test_the_failed_rank_is_named_even_if_a_rank_that_lost_the_group_ended_first() -> None:
    ended: queue.SimpleQueue[int] = queue.SimpleQueue()
    for rank in (0, 2):
        ended.put(rank)

    assert first_to_end([LOST_GROUP, None, -signal.SIGKILL].__getitem__, ended) == 2


def test_a_rank_that_lost_the_group_ends_it_even_if_no_other_rank_ends(start: Start) -> None:
    group = start("wait", f"exit-{LOST_GROUP}")

    assert message_of(group.end()[1]) == f"rank 1 of 2 ended with status {LOST_GROUP}, so the group was ended"


@pytest.mark.parametrize("status", [0, 3])
def test_the_end_of_rank_0_ends_the_group_with_its_status(start: Start, status: int) -> None:
    group = start(f"exit-{status}", "wait")

    assert group.end() == (status, ["rank 0 speaks"])


def test_rank_0_receives_signals_and_the_group_ends_when_rank_0_has_ended(start: Start) -> None:
    group = start("stop-0", "wait")
    pids = group.pids()

    group.parent.send_signal(signal.SIGTERM)

    assert group.end() == (0, ["rank 0 speaks"])
    assert not any(map(is_running, pids))


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel ends processes with their parent on Linux only")
def test_no_rank_outlives_a_killed_parent(start: Start) -> None:
    group = start("wait", "wait")
    pids = group.pids()

    group.parent.kill()

    wait_until(lambda: not any(map(is_running, pids)), timeout_seconds=60)
