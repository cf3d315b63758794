"""The local copies of models are limited in total size. No copy in use is deleted, and no partial copy is used."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

import pytest
from django.conf import settings
from moto import mock_aws

from control.core.settings.config import Config, get_config
from control.core.storage import backends as storage_module
from control.core.storage.backends import S3Storage
from control.models.catalog import cache, sources
from control.models.catalog.cache import (
    RECENT_SECONDS,
    copy_folder,
    delete_copy,
    model_copies_limit,
    partial_folder,
    use_copy,
    use_if_copy,
)
from control.models.catalog.folder import inspect_folder
from control.models.catalog.models import BaseModel
from control.models.catalog.sources import model_folder
from tests.control.factories import make_base_model
from tests.control.models.catalog.test_folder import make_folder

NUM_BYTES = 1_000


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return get_config().model_copy(update={"data_dir": tmp_path, "node_cache": 3 * NUM_BYTES})


def make_copy(config: Config, name: str, *, used_seconds_ago: float) -> Path:
    folder = copy_folder(config, name)
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(NUM_BYTES * b"x")
    use_copy(folder).close()
    set_used(folder, used_seconds_ago)
    return folder


def set_used(folder: Path, seconds_ago: float) -> None:
    at = time.time() - seconds_ago
    os.utime(f"{folder}.lock", (at, at))


def test_the_least_recently_used_copies_are_deleted_until_the_rest_fits(config: Config) -> None:
    ages = [5_000, 1_000, 4_000, 2_000, 3_000]
    copies = {age: make_copy(config, f"model-{age}", used_seconds_ago=age) for age in ages}
    foreign = config.data_dir / "models" / "of-an-operator"
    make_folder(foreign)

    model_copies_limit(config)

    assert [age for age, folder in sorted(copies.items()) if folder.exists()] == [1_000, 2_000, 3_000]
    assert sorted(path.name for path in foreign.parent.glob("*.lock")) == [
        f"model-{n}.lock" for n in (1000, 2000, 3000)
    ]
    assert use_if_copy(config, foreign) is None
    assert any(foreign.iterdir())


def test_room_for_the_copy_that_is_fetched_next_is_made_before(config: Config) -> None:
    oldest, newer, newest = (make_copy(config, f"model-{age}", used_seconds_ago=age) for age in (3_000, 2_000, 1_000))

    model_copies_limit(config)
    assert oldest.exists(), "the copies fit"
    model_copies_limit(config, reserved_bytes=1)

    assert [folder.exists() for folder in (oldest, newer, newest)] == [False, True, True]


def test_the_last_use_of_a_copy_is_the_end_of_its_use_and_not_the_beginning(config: Config) -> None:
    used, other, _ = (make_copy(config, f"model-{age}", used_seconds_ago=age) for age in (3_000, 2_000, 1_000))
    with use_copy(used):
        set_used(used, 3_000)  # the use began long ago
        model_copies_limit(config)

    model_copies_limit(config, reserved_bytes=1)

    assert used.exists()
    assert not other.exists()


def test_a_copy_that_was_fetched_a_moment_ago_is_kept_for_the_process_that_will_use_it(config: Config) -> None:
    config = config.model_copy(update={"node_cache": 0})
    folder = make_copy(config, "new", used_seconds_ago=RECENT_SECONDS / 2)

    model_copies_limit(config)

    assert folder.exists()


def test_a_copy_is_kept_while_a_process_that_inherited_its_lock_lives_although_its_supervisor_was_killed(
    config: Config,
) -> None:
    config = config.model_copy(update={"node_cache": 0})
    used, unused = (make_copy(config, name, used_seconds_ago=9_000) for name in ("used", "unused"))
    engine = "import sys; print('engine', flush=True); sys.stdin.read()"
    supervisor = (
        "import subprocess, sys, time\nfrom pathlib import Path\nfrom control.models.catalog.cache import use_copy\n"
        f"lock = use_copy(Path({str(used)!r}))\n"
        f"subprocess.Popen([sys.executable, '-c', {engine!r}], pass_fds=[lock.fileno()])\ntime.sleep(600)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", supervisor],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == b"engine\n"
        process.send_signal(signal.SIGKILL)
        process.wait()
        set_used(used, 9_000)

        model_copies_limit(config)

        assert used.exists()
        assert not unused.exists()
        process.stdin.close()  # the engine ends
        assert process.stdout.read() == b""
        set_used(used, 9_000)
        model_copies_limit(config)
        assert not used.exists()
    finally:
        process.stdin.close()
        process.stdout.close()


HOSTILE_ENGINE = """
import fcntl, sys
fcntl.flock(int(sys.argv[1]), fcntl.LOCK_EX)
print("locked", flush=True)
sys.stdin.read()
"""


@contextmanager
def hostile_engine(fd: int) -> Iterator[None]:
    """Starts a process that inherits the open file `fd` and locks it. Yields when the file is locked."""
    command = [sys.executable, "-c", HOSTILE_ENGINE, str(fd)]
    with subprocess.Popen(command, pass_fds=[fd], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as engine:
        try:
            assert engine.stdout is not None
            assert engine.stdout.readline() == b"locked\n"
            yield
        finally:
            engine.kill()


def test_an_engine_that_locks_its_inherited_lock_file_keeps_its_copy_and_delays_no_other_use(config: Config) -> None:
    config = config.model_copy(update={"node_cache": 0})
    folder, unused = (make_copy(config, name, used_seconds_ago=9_000) for name in ("shared", "unused"))
    use = use_copy(folder)
    with ThreadPoolExecutor(1) as pool, hostile_engine(use.fileno()):
        use.close()
        pool.submit(lambda: use_copy(folder).close()).result(timeout=60)
        set_used(folder, 9_000)
        model_copies_limit(config)
        assert folder.exists(), "the engine still uses it"
        assert not unused.exists()
    set_used(folder, 9_000)
    model_copies_limit(config)
    assert not folder.exists()
    assert [path.name for path in folder.parent.iterdir()] == [".limit"], (
        "lock files must be deleted when they are no longer used"
    )


def test_no_other_user_can_open_the_lock_files(config: Config) -> None:
    folder = make_copy(config, "model", used_seconds_ago=0)
    lock = Path(f"{folder}.lock")
    lock.chmod(0o644)  # as an earlier release created it
    with use_copy(folder):
        model_copies_limit(config)
        files = [path for path in folder.parent.iterdir() if path.is_file()]
        assert {path.name.split(".lock")[0] for path in files} == {"model", ".limit"}
        assert all(path.stat().st_mode & 0o077 == 0 for path in files)


def test_the_remains_of_an_interrupted_deletion_are_deleted_once_no_copy_is_in_use(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_copy(config, "model", used_seconds_ago=9_000)
    fetched_by_a_killed_process = partial_folder(folder)
    fetched_by_a_killed_process.mkdir()

    with monkeypatch.context() as patched:
        patched.setattr("shutil.rmtree", lambda *_, **__: None)  # as if killed after the first step
        delete_copy(folder)

    assert not folder.exists()
    assert len(list(folder.parent.glob(".model.*"))) == 2
    with use_copy(folder):
        model_copies_limit(config)
    assert len(list(folder.parent.glob(".model.*"))) == 2, "another process may be fetching"
    model_copies_limit(config)
    assert list(folder.parent.glob(".model.*")) == []


@pytest.fixture
def model(db: None, config: Config, monkeypatch: pytest.MonkeyPatch) -> Iterator[BaseModel]:
    """A base model in S3."""
    monkeypatch.setattr(settings, "SLIPSTREAM", config)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    storage_module._s3_client.cache_clear()
    with mock_aws():
        s3 = S3Storage(Config(s3_bucket="models"))
        s3._client.create_bucket(Bucket="models")
        made = make_folder(config.data_dir / "made")
        s3.put_folder("llama", made)
        model = make_base_model()
        model.source, model.revision = "s3://models/llama", inspect_folder(made).revision
        model.save()
        yield model
    storage_module._s3_client.cache_clear()


def test_copies_that_are_fetched_and_deleted_at_the_same_time_are_always_complete(
    model: BaseModel, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each thread opens its own files, as a process does, so that their locks exclude each other."""
    monkeypatch.setattr(cache, "RECENT_SECONDS", -60.0)
    config = config.model_copy(update={"node_cache": 0})
    stop = threading.Event()

    def delete_all() -> int:
        num_passes = 0
        while not stop.is_set():
            model_copies_limit(config)
            num_passes += 1
        return num_passes

    def use() -> set[str]:
        with use_copy(copy_folder(config, model.pk)):
            folder = model_folder(model)
            names = {path.name for path in folder.iterdir()}
            assert inspect_folder(folder).revision == model.revision
            return names

    with ThreadPoolExecutor(5) as pool, ExitStack() as cleanup:
        cleanup.callback(stop.set)
        deleting = [pool.submit(delete_all) for _ in range(2)]
        using = [pool.submit(lambda: [use() for _ in range(10)]) for _ in range(3)]
        names = [found for future in using for found in future.result()]
        stop.set()
        assert all(future.result() for future in deleting)

    assert all(found == names[0] for found in names)
    model_copies_limit(config)
    assert not copy_folder(config, model.pk).exists()


def test_of_several_processes_that_need_a_model_one_fetches_it(
    model: BaseModel, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each thread opens its own files, as a process does. All have seen that there is no copy."""
    get_file, fetched = S3Storage.get_file, list[str]()
    all_need_it = threading.Barrier(3)
    only_fetcher = cache.only_fetcher

    def only_fetcher_of_all(folder: Path) -> AbstractContextManager[bool]:
        all_need_it.wait(20)
        return only_fetcher(folder)

    def counted_get_file(self: S3Storage, key: str, path: Path) -> None:
        fetched.append(path.name)
        get_file(self, key, path)

    monkeypatch.setattr(sources, "only_fetcher", only_fetcher_of_all)
    monkeypatch.setattr(S3Storage, "get_file", counted_get_file)
    with ThreadPoolExecutor(3) as pool:
        folders = {future.result(timeout=60) for future in [pool.submit(model_folder, model) for _ in range(3)]}

    assert folders == {copy_folder(config, model.pk)}
    assert sorted(fetched) == sorted(path.name for path in copy_folder(config, model.pk).iterdir())
    assert list(copy_folder(config, model.pk).parent.glob(".model.*")) == []
