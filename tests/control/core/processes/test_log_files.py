"""Logs are rotated and limited in total, and no log that a process writes to is deleted."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from control.core.processes.in_use import open_in_use
from control.core.processes.log_files import logs_limit
from control.core.settings.config import Config, get_config


@pytest.fixture
def config(tmp_path: Path) -> Config:
    values = {"data_dir": tmp_path, "max_log_file_bytes": 100, "max_old_log_files": 2, "max_logs_bytes": 1_000}
    return get_config().model_copy(update=values)


def write(path: Path, content: bytes, *, written_at: float) -> Path:
    with open_in_use(path) as log:
        log.write(content)
    os.utime(path, (written_at, written_at))
    return path


def test_a_log_that_is_too_large_is_rotated_and_a_limited_number_of_old_logs_is_kept(
    config: Config, tmp_path: Path
) -> None:
    path = tmp_path / "logs" / "deployments" / "one.log"
    with open_in_use(path) as log:
        for letter in (b"a", b"b", b"c", b"d"):
            log.write(letter * 101)
            log.flush()
            logs_limit(config)
        log.write(b"end")

    contents = {file.name: file.read_bytes()[:3] for file in path.parent.iterdir()}
    assert contents == {"one.log": b"end", "one.log.1": b"ddd", "one.log.2": b"ccc"}


def test_the_least_recently_written_logs_are_deleted_until_the_rest_fits(config: Config, tmp_path: Path) -> None:
    logs = [
        write(tmp_path / "logs" / "jobs" / f"{number}.log", b"x" * 100, written_at=1_000 - number)
        for number in range(30)
    ]

    logs_limit(config)

    assert [log for log in logs if log.exists()] == logs[:10]


def test_the_log_of_a_running_process_is_kept_although_it_is_the_oldest_and_its_starter_has_closed_it(
    config: Config, tmp_path: Path
) -> None:
    path = tmp_path / "logs" / "deployments" / "oldest.log"
    with open_in_use(path) as log:
        process = subprocess.Popen(
            [sys.executable, "-c", "import sys; input(); print('still writing', flush=True); input()"],
            stdin=subprocess.PIPE,
            stdout=log,
        )
    assert process.stdin is not None
    os.utime(path, (1, 1))
    config = config.model_copy(update={"max_logs_bytes": 0, "max_log_file_bytes": 1_000})
    ended = write(tmp_path / "logs" / "jobs" / "ended.log", b"x", written_at=1_000)

    logs_limit(config)
    process.stdin.write(b"\n")
    process.communicate(b"\n")

    assert path.read_text() == "still writing\n"
    assert not ended.exists()
    logs_limit(config)
    assert not path.exists(), "the process has ended"


def test_a_log_that_is_opened_while_it_is_deleted_is_created_again(config: Config, tmp_path: Path) -> None:
    config, path = config.model_copy(update={"max_logs_bytes": 0}), tmp_path / "logs" / "one.log"
    stop = threading.Event()

    def delete_all() -> None:
        while not stop.is_set():
            logs_limit(config)

    thread = threading.Thread(target=delete_all)
    thread.start()
    try:
        for _ in range(300):
            with open_in_use(path) as log:
                log.write(b"x")
                log.flush()
                assert path.stat().st_ino == os.fstat(log.fileno()).st_ino
    finally:
        stop.set()
        thread.join()
