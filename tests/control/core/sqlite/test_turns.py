"""Writers of a SQLite database get their turns in the order in which they ask."""

import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from django.db import OperationalError, connection, transaction
from pytest_django.plugin import DjangoDbBlocker

from control.core.sqlite import base, turns
from control.core.sqlite.turns import Turn
from tests.databases import connected_to
from tests.source_tree import ROOT

pytestmark = pytest.mark.skipif(not turns.ARE_AVAILABLE, reason="this system has no locks of open files")

PATIENCE_SECONDS = 60.0


@pytest.fixture
def path(tmp_path: Path, django_db_blocker: DjangoDbBlocker, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Yields the path of a database with a table of names, to which the `default` connections connect."""
    monkeypatch.setattr(base, "MAX_WAIT_SECONDS", PATIENCE_SECONDS)  # long enough for a busy machine
    path = tmp_path / "names.sqlite3"
    with closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA journal_mode=WAL")
        database.execute("CREATE TABLE names (id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT)")
    with connected_to(None, sqlite_path=path), django_db_blocker.unblock():
        yield path


def write(name: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO names (name) VALUES (%s)", [name])


def write_in_transaction(name: str) -> None:
    with transaction.atomic(), transaction.atomic():
        write(name)


def written() -> list[str]:
    with connection.cursor() as cursor:
        cursor.execute("SELECT name FROM names ORDER BY id")
        return [name for (name,) in cursor.fetchall()]


def turns_path(path: Path) -> Path:
    return Path(f"{path}-turns")


def num_tickets(path: Path) -> int:
    return int.from_bytes(turns_path(path).read_bytes())


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def in_line(pool: ThreadPoolExecutor, path: Path, function: Callable[[], None]) -> "Future[None]":
    """Calls `function`, which writes, in a thread of `pool`. Returns when this writer waits for its turn."""

    def call() -> None:
        try:
            function()
        finally:
            connection.close()

    before = num_tickets(path)
    future = pool.submit(call)
    wait_until(lambda: num_tickets(path) > before or future.done())
    return future


@contextmanager
def process(path: Path, code: str) -> Iterator["subprocess.Popen[str]"]:
    """Runs `code` in a new process, whose variable `turn` is a `Turn` of this database.

    Yields the process when the code has run. The process then sleeps until it is killed.
    """
    script = (
        f"import os, sys, time\nfrom pathlib import Path\nfrom control.core.sqlite.turns import Turn\n"
        f"turn = Turn(Path({str(turns_path(path))!r}), max_wait_seconds={PATIENCE_SECONDS})\n"
        f"{code}\nprint('done', flush=True)\ntime.sleep(600)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script],
        cwd=ROOT,
        env={"PYTHONPATH": f"{ROOT}:{ROOT / 'platform'}"},
        stdout=subprocess.PIPE,
        text=True,
    ) as started:
        try:
            assert started.stdout is not None
            assert started.stdout.readline() == "done\n"
            yield started
        finally:
            started.kill()


@pytest.mark.parametrize("writing", [write, write_in_transaction], ids=["single statement", "transaction"])
def test_a_writer_that_waits_comes_before_all_that_ask_later(path: Path, writing: Callable[[str], None]) -> None:
    """After each commit, the holder of the turn asks to write again at once. It may write again only after the writers
    that are already waiting."""
    with ThreadPoolExecutor(4) as pool:
        waiting = []
        with transaction.atomic():
            write("holder")
            for name in ("first", "second", "third"):
                waiting.append(in_line(pool, path, lambda name=name: writing(name)))  # type: ignore[misc]
        for _ in range(5):
            writing("holder")
        for future in waiting:
            future.result(PATIENCE_SECONDS)

    assert written() == ["holder", "first", "second", "third"] + 5 * ["holder"]


def test_no_writer_gets_a_second_turn_while_another_waits_for_its_first(path: Path) -> None:
    """An eighth writer gets its turn after one turn of each of the seven busy writers that asked before it."""

    def write_often() -> None:
        for _ in range(50):
            write_in_transaction("busy")

    with ThreadPoolExecutor(8) as pool:
        with transaction.atomic():
            write("holder")
            waiting = [in_line(pool, path, write_often) for _ in range(7)]
            waiting.append(in_line(pool, path, lambda: write_in_transaction("patient")))
        for future in waiting:
            future.result(PATIENCE_SECONDS)

    assert written().index("patient") == 8


def test_the_turn_passes_on_when_its_holder_is_killed(path: Path) -> None:
    with ThreadPoolExecutor(1) as pool, process(path, "turn.take()") as holder:
        waiting = in_line(pool, path, lambda: write("next"))
        assert not waiting.done()
        holder.kill()
        waiting.result(PATIENCE_SECONDS)

    assert written() == ["next"]


def test_the_turn_passes_on_although_a_forked_process_has_copies_of_the_open_files(path: Path) -> None:
    code = "turn.take()\nif os.fork() == 0:\n    time.sleep(600)\nturn.give_back()"
    with process(path, code):
        turn = Turn(turns_path(path), max_wait_seconds=PATIENCE_SECONDS)
        assert turn.take()
        turn.give_back()


def test_a_write_that_waits_for_a_writer_frozen_in_its_transaction_fails_with_sqlites_error(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(connection.settings_dict["OPTIONS"], "timeout", 0.2)
    monkeypatch.setattr(base, "MAX_WAIT_SECONDS", 0.2)
    begin = f"import sqlite3\nturn.take()\nlock = sqlite3.connect({str(path)!r})\nlock.execute('BEGIN IMMEDIATE')"
    with process(path, begin) as holder:
        holder.send_signal(signal.SIGSTOP)
        for writing in (write, write_in_transaction):
            with pytest.raises(OperationalError, match="database is locked"):
                writing("late")


def test_writers_that_wait_for_a_writer_frozen_before_its_transaction_continue_after_a_time_limit(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base, "MAX_WAIT_SECONDS", 0.2)
    with process(path, "turn.take()") as waiting:
        waiting.send_signal(signal.SIGSTOP)
        write("one")
        write_in_transaction("two")

    assert written() == ["one", "two"]


def test_the_turn_ends_with_the_outermost_transaction_even_if_that_fails(path: Path) -> None:
    turn = Turn(turns_path(path), max_wait_seconds=0.0)
    with transaction.atomic():
        with transaction.atomic():
            write("nested")
        assert not turn.take()
    assert turn.take()
    turn.give_back()
    with pytest.raises(RuntimeError), transaction.atomic():  # rolled back
        raise RuntimeError
    assert turn.take()
    turn.give_back()
    with pytest.raises(OperationalError):  # a single write that fails
        connection.cursor().execute("INSERT INTO missing VALUES (1)")
    assert turn.take()
    turn.give_back()
    with transaction.atomic():
        connection.close()
        assert turn.take()
    turn.give_back()


def test_reads_do_not_wait_for_a_turn(path: Path) -> None:
    turn = Turn(turns_path(path), max_wait_seconds=0.0)
    assert turn.take()
    assert written() == []
    assert num_tickets(path) == 1
    turn.give_back()


def test_databases_in_memory_or_in_a_missing_folder_have_no_turns(path: Path) -> None:
    assert not Turn(path.parent / "missing" / "turns", max_wait_seconds=0.0).take()
    memory = base.DatabaseWrapper({**connection.settings_dict, "NAME": ":memory:"}, "memory")
    memory.inc_thread_sharing()
    memory.ensure_connection()
    with memory.cursor() as cursor:
        cursor.execute("CREATE TABLE names (name TEXT)")
    assert memory._turn is None
