"""A machine fetches a speculator or adapter once, and a copy is complete or absent, also after kill -9."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.conf import settings

from control.core.settings.config import Config, get_config
from control.core.storage.backends import FolderStorage
from control.models.catalog.artifacts import DamagedArtifact, artifact_folder
from control.models.catalog.cache import copy_folder, model_copies_limit
from tests.control.models.catalog.test_cache import NUM_BYTES, make_copy, set_used
from tests.control.models.catalog.test_folder import make_folder
from tests.engine.server.live import wait_until

NUM_FILES = 3
# Appends the name of each file that it fetches to the file `fetched`. Waits for the file `go_on` before the last one.
PROGRAM = """
import sys, time
from pathlib import Path
from control.core.storage.backends import FolderStorage
from control.models.catalog.artifacts import artifact_folder

data_dir, get_file = Path(sys.argv[1]), FolderStorage.get_file

def slow_get_file(self, key, path):
    with (data_dir / "fetched").open("a") as log:
        print(path.name, file=log)
    while path.name == "tokenizer.json" and not (data_dir / "go_on").exists():
        time.sleep(0.01)
    get_file(self, key, path)

FolderStorage.get_file = slow_get_file
print(artifact_folder("spc_1", "speculators/one"), flush=True)
"""


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    """The configuration of this process and of the program. The storage has a speculator."""
    config = get_config().model_copy(update={"data_dir": tmp_path})
    monkeypatch.setattr(settings, "SLIPSTREAM", config)
    FolderStorage(config.storage_dir).put_folder("speculators/one", make_folder(tmp_path / "made"))
    return config


@pytest.fixture
def programs(config: Config) -> Iterator[list[subprocess.Popen[str]]]:
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(sys.path),
        "DJANGO_SETTINGS_MODULE": "control.core.settings.embedded",
        "SLIPSTREAM_DATA_DIR": str(config.data_dir),
    }
    command = [sys.executable, "-c", PROGRAM, str(config.data_dir)]
    started = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    yield started
    for program in started:
        program.kill()
        program.communicate()


def fetched(config: Config) -> list[str]:
    log = config.data_dir / "fetched"
    return log.read_text().split() if log.exists() else []


def test_of_several_processes_one_fetches_and_the_others_wait_for_its_copy(
    config: Config, programs: list[subprocess.Popen[str]]
) -> None:
    wait_until(lambda: "tokenizer.json" in fetched(config))
    wait_until(lambda: len(waiting_for_the_fetch(programs)) == len(programs) - 1)
    assert not copy_folder(config, "spc_1").exists()

    (config.data_dir / "go_on").touch()

    folders = {program.communicate(timeout=20)[0].strip() for program in programs}
    assert folders == {str(copy_folder(config, "spc_1"))}
    assert len(fetched(config)) == NUM_FILES


def test_after_kill_9_during_the_fetch_another_process_fetches_and_no_partial_copy_is_used(
    config: Config, programs: list[subprocess.Popen[str]]
) -> None:
    wait_until(lambda: "tokenizer.json" in fetched(config))
    wait_until(lambda: len(waiting_for_the_fetch(programs)) == len(programs) - 1)
    (fetcher,) = set(programs) - waiting_for_the_fetch(programs)

    fetcher.kill()

    wait_until(lambda: fetched(config).count("tokenizer.json") == 2)
    copy = copy_folder(config, "spc_1")
    assert not copy.exists()
    assert len(list(copy.parent.glob(".spc_1.*"))) == 2, "both partial copies"
    (config.data_dir / "go_on").touch()
    for program in programs:
        program.communicate(timeout=20)
    assert sorted(path.name for path in copy.iterdir()) == sorted(set(fetched(config)))
    assert len(fetched(config)) == 2 * NUM_FILES
    model_copies_limit(config)
    assert list(copy.parent.glob(".spc_1.*")) == []


def waiting_for_the_fetch(programs: list[subprocess.Popen[str]]) -> set["subprocess.Popen[str]"]:
    """The programs that wait for a lock."""
    blocked = {line.split()[5] for line in Path("/proc/locks").read_text().splitlines() if " -> " in line}
    return {program for program in programs if str(program.pid) in blocked}


def test_files_that_differ_from_those_in_storage_are_refused_and_leave_no_copy(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    get_file = FolderStorage.get_file

    def get_half(self: FolderStorage, key: str, path: Path) -> None:
        get_file(self, key, path)
        os.truncate(path, path.stat().st_size // 2)

    with monkeypatch.context() as patched:
        patched.setattr(FolderStorage, "get_file", get_half)
        with pytest.raises(DamagedArtifact):
            artifact_folder("spc_1", "speculators/one")
    weights = config.data_dir / "made" / "model.safetensors"
    weights.write_bytes(b"\xff" * weights.stat().st_size)
    FolderStorage(config.storage_dir).put_folder("speculators/two", weights.parent)
    with pytest.raises(DamagedArtifact):
        artifact_folder("spc_2", "speculators/two")

    assert [path for path in (config.data_dir / "models").iterdir() if path.is_dir()] == []
    assert artifact_folder("spc_1", "speculators/one").is_dir()


def test_a_fetch_without_enough_room_first_deletes_the_least_recently_used_copies(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    copies = [make_copy(config, f"model-{age}", used_seconds_ago=age) for age in (5_000, 4_000)]
    size = sum(path.stat().st_size for path in (config.data_dir / "made").iterdir())
    monkeypatch.setattr(settings, "SLIPSTREAM", config.model_copy(update={"node_cache": NUM_BYTES + size}))

    folder = artifact_folder("spc_1", "speculators/one")

    assert [copy.exists() for copy in copies] == [False, True]
    set_used(folder, 9_000)
    artifact_folder("spc_1", "speculators/one")  # counts as a use
    make_copy(config, "model-9000", used_seconds_ago=9_000)
    model_copies_limit(get_config())
    assert folder.exists()
