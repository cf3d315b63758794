"""Checkpoints of training are read back unchanged. Damaged or incomplete checkpoints are refused."""

from pathlib import Path

import pytest
import torch

from workers.training.checkpoint import (
    CheckpointError,
    Snapshot,
    load_newest_checkpoint,
    read_checkpoint,
    save_checkpoint,
)


def snapshot(step: int) -> Snapshot:
    return Snapshot(step, {"w": torch.arange(8.0) + step, "random_state": torch.get_rng_state()}, {"best": step / 3})


def test_a_checkpoint_is_read_back_unchanged(tmp_path: Path) -> None:
    written = snapshot(7)
    save_checkpoint(tmp_path, written)
    found = load_newest_checkpoint(tmp_path)
    assert found is not None
    assert (found.step, found.state) == (7, {"best": 7 / 3})
    assert all(torch.equal(found.tensors[name], tensor) for name, tensor in written.tensors.items())


def test_loading_from_a_folder_without_checkpoints_returns_none(tmp_path: Path) -> None:
    assert load_newest_checkpoint(tmp_path) is None
    assert load_newest_checkpoint(tmp_path / "absent") is None


def test_only_the_two_newest_checkpoints_are_kept(tmp_path: Path) -> None:
    for step in (10, 20, 100):
        save_checkpoint(tmp_path, snapshot(step))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint-00000020", "checkpoint-00000100"]


@pytest.mark.parametrize("name", ["tensors.safetensors", "state.json"])
def test_a_checkpoint_with_a_flipped_bit_is_refused_and_the_previous_one_is_loaded(tmp_path: Path, name: str) -> None:
    save_checkpoint(tmp_path, snapshot(1))
    newest = save_checkpoint(tmp_path, snapshot(2))
    data = bytearray((newest / name).read_bytes())
    data[-3] ^= 1
    (newest / name).write_bytes(bytes(data))
    with pytest.raises(CheckpointError, match=name):
        read_checkpoint(newest)
    found = load_newest_checkpoint(tmp_path)
    assert found is not None
    assert found.step == 1


@pytest.mark.parametrize("name", ["tensors.safetensors", "state.json", "manifest.json"])
def test_a_checkpoint_with_a_truncated_file_is_refused(tmp_path: Path, name: str) -> None:
    folder = save_checkpoint(tmp_path, snapshot(1))
    data = (folder / name).read_bytes()
    (folder / name).write_bytes(data[: len(data) // 2])
    with pytest.raises(CheckpointError):
        read_checkpoint(folder)


def test_a_checkpoint_with_a_missing_file_is_not_loaded(tmp_path: Path) -> None:
    folder = save_checkpoint(tmp_path, snapshot(1))
    (folder / "tensors.safetensors").unlink()
    assert load_newest_checkpoint(tmp_path) is None


def test_an_incomplete_checkpoint_of_a_killed_writer_is_ignored_and_replaced(tmp_path: Path) -> None:
    folder = save_checkpoint(tmp_path, snapshot(1))
    folder.rename(tmp_path / ".checkpoint-00000001.partial")
    assert load_newest_checkpoint(tmp_path) is None
    save_checkpoint(tmp_path, snapshot(1))
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-00000001"]


def test_a_folder_that_is_itself_a_checkpoint_is_loaded_until_it_contains_a_newer_checkpoint(tmp_path: Path) -> None:
    folder = save_checkpoint(tmp_path / "elsewhere", snapshot(1)).rename(tmp_path / "checkpoint")
    found = load_newest_checkpoint(folder)
    assert found is not None
    assert found.step == 1
    save_checkpoint(folder, snapshot(2))
    found = load_newest_checkpoint(folder)
    assert found is not None
    assert found.step == 2
