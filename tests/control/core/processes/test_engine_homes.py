"""The home folders of engine users are limited in total size, and a home that a process uses is never deleted."""

import fcntl
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from control.core.processes import engine_homes
from control.core.processes.engine_homes import engine_homes_limit, use_home
from control.core.processes.engine_users import EngineUser, engine_user
from control.core.settings.config import Config, get_config

MIB = 1024 * 1024
pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or os.geteuid() != 0, reason="only root on Linux can give a folder to another user"
)


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    """A configuration under which every call measures the homes, and three homes of 1 MiB fit into the limit."""
    monkeypatch.setattr(engine_homes, "MEASURE_SECONDS", -60.0)
    limits = {"data_dir": tmp_path, "engine_uids": "61000-61009", "max_engine_homes_bytes": 3 * MIB + MIB // 2}
    return get_config().model_copy(update=limits)


def make_home(config: Config, organization_id: str, *, used_seconds_ago: float) -> EngineUser:
    user = engine_user(config, organization_id)
    assert user is not None
    use_home(user).close()
    (user.home / "cache" / "file").write_bytes(MIB * b"x")
    set_used(user, used_seconds_ago)
    return user


def lock_of(user: EngineUser) -> Path:
    return user.home.parent.parent / "engine_home_locks" / f"{user.uid}.lock"


def set_used(user: EngineUser, seconds_ago: float) -> None:
    at = time.time() - seconds_ago
    os.utime(lock_of(user), (at, at))


def test_the_least_recently_used_homes_are_deleted_until_the_rest_fits(config: Config) -> None:
    ages = [5_000, 1_000, 4_000, 2_000, 3_000]
    users = {age: make_home(config, f"org_{age}", used_seconds_ago=age) for age in ages}

    engine_homes_limit(config)

    assert [age for age, user in sorted(users.items()) if user.home.exists()] == [1_000, 2_000, 3_000]
    assert sorted(user.home.name for user in users.values() if user.home.exists()) == sorted(
        path.name for path in (config.data_dir / "engine_homes").iterdir()
    )
    with use_home(users[5_000]):
        assert users[5_000].home.stat().st_uid == users[5_000].uid
        assert (users[5_000].home / "tmp").stat().st_mode & 0o777 == 0o700


def test_no_engine_can_open_the_locks_of_the_homes(config: Config) -> None:
    user = make_home(config, "org_1", used_seconds_ago=0)

    assert lock_of(user).parent.stat().st_mode & 0o077 == 0


def test_homes_are_measured_only_every_few_minutes(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_homes, "MEASURE_SECONDS", 600.0)
    engine_homes_limit(config)
    none = config.model_copy(update={"max_engine_homes_bytes": 0})
    engine_user(config, "org_0")  # makes the folder of all homes
    engine_homes_limit(none)
    user = make_home(config, "org_1", used_seconds_ago=9_000)

    engine_homes_limit(none)
    assert user.home.exists()
    os.utime(lock_of(user).with_name(".limit.lock"), (0, 0))
    engine_homes_limit(none)
    assert not user.home.exists()


def test_a_home_is_kept_while_a_process_that_inherited_its_lock_lives(config: Config) -> None:
    config = config.model_copy(update={"max_engine_homes_bytes": 0})
    used, unused = (make_home(config, name, used_seconds_ago=9_000) for name in ("org_used", "org_unused"))
    with use_home(used) as home:
        engine = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=[home.fileno()])
    set_used(used, 9_000)

    with engine:
        engine_homes_limit(config)
        assert used.home.exists()
        assert not unused.home.exists()
    engine_homes_limit(config)
    assert not used.home.exists()


def test_a_home_with_deeply_nested_folders_and_links_is_deleted(config: Config, tmp_path: Path) -> None:
    """The deletion also copes with folders that are nested beyond Python's recursion limit, and it does not follow
    links."""
    user = make_home(config, "org_1", used_seconds_ago=9_000)
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").touch()
    (user.home / "link").symlink_to(outside)
    folder = os.open(user.home, os.O_RDONLY)
    for _ in range(3_000):
        os.mkdir("deeper", dir_fd=folder)
        folder, parent = os.open("deeper", os.O_RDONLY, dir_fd=folder), folder
        os.close(parent)
    os.close(folder)

    engine_homes_limit(config.model_copy(update={"max_engine_homes_bytes": 0}))

    assert list(user.home.parent.iterdir()) == []
    assert (outside / "file").exists()


def test_a_home_with_too_many_files_to_measure_counts_as_too_large(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    user = make_home(config, "org_1", used_seconds_ago=9_000)
    program = tmp_path / "bin" / "du"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\nexec sleep 600\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=os.pathsep)
    monkeypatch.setattr(engine_homes, "COMMAND_SECONDS", 0.2)

    engine_homes_limit(config)

    assert not user.home.exists()


def test_the_remains_of_an_interrupted_deletion_are_deleted_even_if_the_homes_fit(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    user = make_home(config, "org_1", used_seconds_ago=9_000)
    with monkeypatch.context() as patched:
        patched.setattr(engine_homes, "_remove", lambda _: None)  # as if killed after the first step
        engine_homes_limit(config.model_copy(update={"max_engine_homes_bytes": 0}))
    assert not user.home.exists()
    assert len(list(user.home.parent.iterdir())) == 1

    engine_homes_limit(config)

    assert list(user.home.parent.iterdir()) == []


def test_a_home_exists_during_each_use_even_if_another_thread_keeps_deleting_homes(config: Config) -> None:
    """Each thread opens its own files, as a process does, so that their locks exclude each other."""
    config = config.model_copy(update={"max_engine_homes_bytes": 0})
    user = make_home(config, "org_1", used_seconds_ago=0)
    stop = threading.Event()

    def delete_all() -> None:
        while not stop.is_set():
            engine_homes_limit(config)

    def use(number: int) -> None:
        with use_home(user):
            (user.home / "tmp" / str(number)).touch()
            (user.home / "cache" / str(number)).touch()

    with ThreadPoolExecutor(4) as pool, ExitStack() as cleanup:
        cleanup.callback(stop.set)
        deleting = pool.submit(delete_all)
        list(pool.map(use, range(300)))
        stop.set()
        deleting.result()

    engine_homes_limit(config)
    assert not user.home.exists()


def test_an_engine_that_keeps_its_home_locked_delays_its_next_start_only_for_a_limited_time(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_homes, "MAX_WAIT_SECONDS", 0.05)
    user = make_home(config, "org_1", used_seconds_ago=0)
    with use_home(user) as home:
        fcntl.flock(home, fcntl.LOCK_EX)  # a process that inherited the file can do this
        with pytest.raises(TimeoutError, match=r"61000\.lock was locked"):
            use_home(user)


@pytest.fixture(autouse=True)
def _no_folders_that_pytest_cannot_delete(tmp_path: Path) -> Iterator[None]:
    yield
    subprocess.run(["rm", "-rf", str(tmp_path / "engine_homes")], check=True)
