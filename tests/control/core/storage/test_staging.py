"""Temporary files of killed processes are deleted, and temporary files that may be in use are kept."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from control.core.settings.config import get_config
from control.core.storage.backends import FolderStorage
from control.core.storage.staging import ABANDONED_SECONDS, staged_writer, staging_folder, staging_purge


def put_endless_file(storage: Path, source: Path) -> None:
    FolderStorage(storage).put_file("org/files/x", source)


def write_in_staging_folder(storage: Path, source: Path) -> None:
    with staging_folder() as folder:
        (folder / "rows").write_bytes(b"x")
        source.open("rb")  # blocks


def write_staged_file(storage: Path, source: Path) -> None:
    with staged_writer() as writer:
        writer.write(b"x")
        source.open("rb")  # blocks


def files_below(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


@pytest.mark.parametrize("work", [put_endless_file, write_in_staging_folder, write_staged_file])
def test_temporary_files_of_a_process_killed_with_kill_9_are_deleted_a_day_later(
    tmp_path: Path, own_data_dir: None, work: Callable[[Path, Path], None]
) -> None:
    source = tmp_path / "pipe"
    os.mkfifo(source)
    if (child := os.fork()) == 0:
        try:
            work(get_config().storage_dir, source)
        finally:
            os._exit(1)
    pipe = source.open("wb", buffering=0) if work is put_endless_file else None  # opens when the child reads
    while not files_below(tmp_path / "data"):
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    if pipe is not None:
        pipe.close()

    assert staging_purge() == 0, "the files may still be in use"
    assert files_below(tmp_path / "data")
    long_ago = time.time() - ABANDONED_SECONDS - 1
    for path in (tmp_path / "data").rglob("*"):
        os.utime(path, (long_ago, long_ago))

    assert staging_purge() == 1
    assert files_below(tmp_path / "data") == []
    assert FolderStorage(get_config().storage_dir).sizes("org") == {}
