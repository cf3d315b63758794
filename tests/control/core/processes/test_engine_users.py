"""A process that runs a customer's model reaches neither our secrets nor another organization's files and processes."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured

from control.core.processes.child_environment import child_environment
from control.core.processes.engine_homes import use_home
from control.core.processes.engine_users import (
    RELEASE_SECONDS,
    EngineUser,
    NoFreeUser,
    engine_user,
    home_lock,
    make_model_readable,
    make_readable,
    make_writable,
    uid_range,
)
from control.core.settings.config import Config, get_config
from workers.parent_death import dying_with_parent, kept_command, unprivileged

ROOT = Path(__file__).resolve().parents[4]
# Every user can run this interpreter. A virtual environment's interpreter may lie in root's home.
PYTHON = "/usr/bin/python3"
needs_root = pytest.mark.skipif(
    sys.platform != "linux" or os.geteuid() != 0 or not Path(PYTHON).exists(),
    reason="only root on Linux can start a process as another user",
)
# Reads and writes the files named in its arguments, and prints what succeeded.
TRESPASS = """
import json, os, sys
def can(action):
    try:
        action()
    except OSError:
        return False
    return True
reads, writes = json.loads(sys.argv[1])
status = open("/proc/self/status").read()
print(json.dumps({
    "uid": os.getuid(), "gid": os.getgid(), "groups": os.getgroups(), "environment": dict(os.environ),
    "no_new_privs": "NoNewPrivs:\\t1" in status,
    "read": [path for path in reads if can(lambda: os.listdir(path) if os.path.isdir(path) else open(path).read())],
    "written": [path for path in writes if can(lambda: open(path, "w").close())],
}))
"""
# A program that has a password in its environment and, if `hides` is true, hides its environment and memory.
HOLD_A_PASSWORD = """
import sys, time
sys.path.insert(0, {root!r})
from workers.parent_death import hide_memory_and_environment
if {hides}:
    hide_memory_and_environment()
print("ready", flush=True)
time.sleep(60)
"""


@dataclass(frozen=True)
class Report:
    """The output of the program `TRESPASS`: which files it could read and write, and as which user it ran."""

    values: dict[str, Any]

    @property
    def environment(self) -> dict[str, str]:
        return dict(self.values["environment"])


def trespass(
    user: EngineUser, *, reads: list[str] | None = None, writes: list[str] | None = None, command: Any = unprivileged
) -> Report:
    program = [PYTHON, "-c", TRESPASS, json.dumps([reads or [], writes or []])]
    environment = {**child_environment(), **user.environment()}
    done = subprocess.run(
        command(program, uid=user.uid), env=environment, cwd="/", check=True, capture_output=True, text=True, timeout=30
    )
    return Report(json.loads(done.stdout))


@pytest.fixture
def config() -> Iterator[Config]:
    """A configuration with a data folder whose parents every user may pass through."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        Path(folder).chmod(0o711)
        yield get_config().model_copy(update={"data_dir": Path(folder) / "data", "engine_uids": "61000-61009"})


def user_of(config: Config, organization_id: str) -> EngineUser:
    """Returns the engine user of the organization, after creating the user's home."""
    user = engine_user(config, organization_id)
    assert user is not None
    use_home(user).close()
    return user


@pytest.mark.parametrize("value", ["abc", "1-", "20-10", "0-100", "999-2000", "-5", "70000-60000"])
def test_a_range_of_user_ids_that_is_invalid_or_contains_system_users_is_refused(value: str) -> None:
    with pytest.raises(ImproperlyConfigured, match="must be FIRST-LAST"):
        uid_range(get_config().model_copy(update={"engine_uids": value}))


def test_a_range_of_user_ids_is_refused_if_this_process_cannot_change_users(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 10001)
    with pytest.raises(ImproperlyConfigured, match="run as root"):
        uid_range(get_config().model_copy(update={"engine_uids": "61000-61009"}))


def test_without_a_range_of_user_ids_processes_keep_the_user_of_their_parent() -> None:
    assert engine_user(get_config(), "org_1") is None


@needs_root
def test_each_organization_keeps_its_own_user_even_if_many_threads_ask_for_users_at_once(config: Config) -> None:
    names = [f"org_{i % 10}" for i in range(100)]
    with ThreadPoolExecutor(16) as pool:
        uids = list(pool.map(lambda name: user_of(config, name).uid, names))

    assert len(set(zip(names, uids, strict=True))) == 10
    assert sorted(set(uids)) == list(range(61000, 61010))
    with pytest.raises(NoFreeUser, match="all 10 ids"):
        engine_user(config, "org_11")


def set_used(user: EngineUser, seconds_ago: float) -> None:
    at = time.time() - seconds_ago
    os.utime(home_lock(user.home), (at, at))


@needs_root
def test_a_user_id_that_its_organization_has_not_used_for_a_day_is_released_and_loses_access_to_files(
    config: Config,
) -> None:
    users = {number: user_of(config, f"org_{number}") for number in range(10)}
    for user in users.values():
        set_used(user, RELEASE_SECONDS / 2)
    idle = users[4]
    set_used(idle, RELEASE_SECONDS + 60)
    data_dir = config.data_dir
    folders = [data_dir / name for name in ("models/a", "deployments/a", "work/a")]
    for folder in folders:
        folder.mkdir(parents=True)
        (folder / "file").write_text("content")
        make_readable(folder, idle)
    make_writable(folders[2] / "output", idle)
    secret = folders[2] / "output" / "result"
    secret.write_text("content")
    os.chown(secret, idle.uid, idle.uid)
    (idle.home / "cache").chmod(0o755)
    reads = [*map(str, folders), *(f"{folder}/file" for folder in folders), str(secret), str(idle.home / "cache")]
    assert set(reads) <= set(trespass(idle, reads=reads).values["read"]), "the old user must be able to read them"

    assert engine_user(config, "org_new") == idle
    assert trespass(idle, reads=reads).values["read"] == []
    assert not idle.home.exists()
    assert list(idle.home.parent.glob(f".{idle.uid}.*")), (
        "the old home is renamed, and deleted later with other homes over the limit"
    )
    with pytest.raises(NoFreeUser):
        engine_user(config, "org_4")


@needs_root
def test_a_user_id_of_a_running_process_is_not_released_although_the_process_has_unlocked_its_home(
    config: Config,
) -> None:
    users = {number: user_of(config, f"org_{number}") for number in range(10)}
    sleeper = subprocess.Popen(
        unprivileged([PYTHON, "-c", "print(1, flush=True); import time; time.sleep(60)"], uid=users[4].uid),
        stdout=subprocess.PIPE,
        cwd="/",
    )
    assert sleeper.stdout is not None
    sleeper.stdout.readline()
    with use_home(users[5]):
        for user in (users[4], users[5]):
            set_used(user, RELEASE_SECONDS + 60)
        try:
            with pytest.raises(NoFreeUser, match="all 10 ids"):
                engine_user(config, "org_new")
        finally:
            sleeper.kill()
            sleeper.communicate()
        assert engine_user(config, "org_new") == users[4]


@needs_root
def test_a_file_that_disappears_while_the_data_folder_is_made_private_causes_no_error(config: Config) -> None:
    user_of(config, "org_1")
    stop = Event()

    def write_and_delete() -> None:
        while not stop.is_set():
            for i in range(20):
                (config.data_dir / f"slipstream.sqlite3-journal{i}").touch()
            for i in range(20):
                (config.data_dir / f"slipstream.sqlite3-journal{i}").unlink()

    with ThreadPoolExecutor(1) as pool:
        writer = pool.submit(write_and_delete)
        try:
            for _ in range(200):
                user_of(config, "org_1")
        finally:
            stop.set()
        writer.result()


@needs_root
@pytest.mark.parametrize("command", [unprivileged, dying_with_parent])
def test_an_engine_runs_as_its_organizations_user_without_secrets_and_privileges(
    config: Config, monkeypatch: pytest.MonkeyPatch, command: Any
) -> None:
    for name in ("SLIPSTREAM_DATABASE_URL", "SLIPSTREAM_SECRET_KEY", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "secret")
    user = user_of(config, "org_1")

    report = trespass(user, command=command)

    assert (report.values["uid"], report.values["gid"], report.values["groups"]) == (user.uid, user.uid, [])
    assert report.values["no_new_privs"] is True
    assert "secret" not in report.environment.values()
    assert report.environment["HOME"] == str(user.home)


@needs_root
def test_an_engine_cannot_read_the_environment_of_its_parent_or_of_another_organizations_engine(config: Config) -> None:
    first, second = user_of(config, "org_1"), user_of(config, "org_2")
    sleeper = subprocess.Popen(
        unprivileged([PYTHON, "-c", "print(1, flush=True); import time; time.sleep(60)"], uid=first.uid),
        env={"SLIPSTREAM_ENGINE_TOKEN": "token"},
        stdout=subprocess.PIPE,
        cwd="/",
    )
    assert sleeper.stdout is not None
    sleeper.stdout.readline()
    theirs, ours = f"/proc/{sleeper.pid}/environ", f"/proc/{os.getpid()}/environ"

    report = trespass(second, reads=[theirs, ours])
    own = trespass(first, reads=[theirs])
    sleeper.kill()
    sleeper.communicate()

    assert report.values["read"] == []
    assert own.values["read"] == [theirs], "no user can read this environment, so the check above proves nothing"


@needs_root
def test_an_engine_reaches_only_the_files_of_its_organization(config: Config) -> None:
    first, second = user_of(config, "org_1"), user_of(config, "org_2")
    data_dir = config.data_dir
    folders = {name: data_dir / name for name in ("models/a", "models/shared", "deployments/a", "work/a", "storage/a")}
    for folder in folders.values():
        folder.mkdir(parents=True)
        (folder / "file").write_text("content")
    (data_dir / "secret_key").write_text("secret")
    make_model_readable(config, folders["models/a"], owner_id="org_1")
    make_model_readable(config, folders["models/shared"], owner_id=None)
    make_readable(folders["deployments/a"], first)
    make_readable(folders["work/a"], first)
    make_writable(folders["work/a"] / "output", first)
    engine_user(config, "org_1")  # each launch calls this, which hides new files from other users
    reads = [str(folder / "file") for folder in folders.values()]
    reads += [str(data_dir), str(data_dir / "models"), str(data_dir / "secret_key"), str(first.home)]
    writes = [str(folders["work/a"] / "output" / "result"), str(folders["work/a"] / "spec.json"), str(first.home / "x")]
    writes += [str(data_dir / "models" / "shared" / "file")]

    own, other = (trespass(user, reads=reads, writes=writes).values for user in (first, second))

    readable = ["models/a", "models/shared", "deployments/a", "work/a"]
    assert own["read"] == [*(str(folders[name] / "file") for name in readable), str(first.home)]
    assert own["written"] == [str(folders["work/a"] / "output" / "result"), str(first.home / "x")]
    assert other["read"] == [str(folders["models/shared"] / "file")]
    assert other["written"] == []


@needs_root
@pytest.mark.parametrize("hides", [True, False])
def test_the_same_user_cannot_read_the_environment_of_a_process_that_hides_it(config: Config, hides: bool) -> None:
    user = user_of(config, "org_1")
    holder = subprocess.Popen(
        unprivileged([PYTHON, "-c", HOLD_A_PASSWORD.format(root=str(ROOT), hides=hides)], uid=user.uid),
        env={"SLIPSTREAM_DATABASE_URL": "secret"},
        stdout=subprocess.PIPE,
        cwd="/",
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"ready\n"

    files = [f"/proc/{holder.pid}/environ", f"/proc/{holder.pid}/mem"]
    report = trespass(user, reads=files[:1], writes=files[1:])
    holder.kill()
    holder.communicate()

    assert (report.values["read"], report.values["written"]) == ([], []) if hides else (files[:1], files[1:])


@needs_root
def test_an_engine_cannot_kill_its_keeper_process_and_dies_with_it(config: Config) -> None:
    user = user_of(config, "org_1")
    program = (
        "import os, sys, time\n"
        "try: os.kill(os.getppid(), 9)\n"
        "except PermissionError: print(os.getpid(), os.getuid(), flush=True)\n"
        "time.sleep(60)"
    )
    lifeline, owner = os.pipe()
    keeper = subprocess.Popen(
        kept_command([PYTHON, "-c", program], lifeline=lifeline, uid=user.uid),
        stdout=subprocess.PIPE,
        pass_fds=(lifeline,),
        start_new_session=True,
        cwd="/",
    )
    os.close(lifeline)
    assert keeper.stdout is not None
    pid, uid = map(int, keeper.stdout.readline().split())
    keeper.send_signal(signal.SIGKILL)

    assert uid == user.uid
    assert keeper.stdout.read() == b"", "the engine holds this pipe until it ends"
    keeper.stdout.close()
    keeper.wait()
    os.close(owner)
    assert not Path(f"/proc/{pid}/exe").exists()
