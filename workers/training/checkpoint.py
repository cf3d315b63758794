"""Checkpoints: a folder of safetensors and JSON that is written completely or not at all.

    checkpoint-00000120/
        tensors.safetensors   weights, optimizer moments, random state, best weights
        state.json            counters and the position in the data
        manifest.json         size and SHA-256 of the other two files; written last

A checkpoint is written to a folder with a temporary name. Its files and the folder are synced, and then the folder is
renamed. A file that was truncated or altered later does not match the manifest; loading then uses the previous
checkpoint.
"""

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor

_PREFIX = "checkpoint-"
_TENSORS, _STATE, _MANIFEST = "tensors.safetensors", "state.json", "manifest.json"
_NUM_RETAINED = 2  # the older one is used if the newest is damaged; the supervisor may also still read it

logger = logging.getLogger(__name__)


class CheckpointError(ValueError):
    """A checkpoint is incomplete or damaged."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state of training after a step, from which training can resume."""

    step: int
    tensors: Mapping[str, Tensor]
    state: Mapping[str, Any]  # JSON


@contextmanager
def whole_folder(folder: Path) -> Iterator[Path]:
    """Yields an empty folder, which becomes `folder` at the end of the block. An older folder there is replaced.

    A process that is killed leaves no incomplete folder with this name.
    """
    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    yield partial
    for path in partial.rglob("*"):
        sync(path)
    sync(partial)
    shutil.rmtree(folder, ignore_errors=True)
    partial.rename(folder)
    sync(folder.parent)


def save_checkpoint(folder: Path, snapshot: Snapshot) -> Path:
    """Writes a checkpoint and returns its folder.

    Effects: a checkpoint of the same step is replaced; all but the newest two checkpoints are deleted.
    """
    final = folder / f"{_PREFIX}{snapshot.step:08d}"
    with whole_folder(final) as partial:
        save_file({name: tensor.contiguous() for name, tensor in snapshot.tensors.items()}, partial / _TENSORS)
        (partial / _STATE).write_text(json.dumps({"step": snapshot.step, **snapshot.state}))
        manifest = {name: _fingerprint(partial / name) for name in (_TENSORS, _STATE)}
        (partial / _MANIFEST).write_text(json.dumps(manifest))
    for old in _newest_first(folder)[_NUM_RETAINED:]:
        shutil.rmtree(old, ignore_errors=True)
    return final


def load_newest_checkpoint(folder: Path) -> Snapshot | None:
    """Returns the newest undamaged checkpoint: one of the folders checkpoint-* in `folder`, else `folder` itself.

    Returns None if neither is a checkpoint.
    """
    if not folder.is_dir():
        return None
    # The supervisor restores the files of one checkpoint directly into `folder`, without the folder checkpoint-*.
    itself = [folder] if (folder / _MANIFEST).is_file() else []
    for candidate in [*_newest_first(folder), *itself]:
        try:
            return read_checkpoint(candidate)
        except CheckpointError as error:
            logger.warning("checkpoint refused: %s", error)
    return None


def load_checkpoint_of(folder: Path, taps: tuple[int, ...], *, deletes: bool) -> Snapshot | None:
    """Works like `load_newest_checkpoint`, but returns None if the checkpoint was made for other taps.

    deletes: whether to delete such checkpoints, so that no later attempt reads them.
    """
    snapshot = load_newest_checkpoint(folder)
    if snapshot is None or tuple(snapshot.state.get("taps", ())) == taps:
        return snapshot
    logger.warning("the checkpoint of step %d was made for other taps: training begins again", snapshot.step)
    if deletes:
        for candidate in _newest_first(folder):
            shutil.rmtree(candidate, ignore_errors=True)
        (folder / _MANIFEST).unlink(missing_ok=True)
    return None


def read_checkpoint(folder: Path) -> Snapshot:
    """Raises: CheckpointError: a file is missing or does not match the manifest."""
    try:
        manifest = json.loads((folder / _MANIFEST).read_text())
        for name in (_TENSORS, _STATE):
            actual = _fingerprint(folder / name)
            if manifest[name] != actual:
                raise CheckpointError(f"{folder.name}/{name} should be {manifest[name]}, is {actual}")
    except (OSError, ValueError, KeyError) as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(f"{folder.name}: {error!r}") from error
    state = json.loads((folder / _STATE).read_text())
    return Snapshot(step=state.pop("step"), tensors=load_file(folder / _TENSORS), state=state)


def sync(path: Path) -> None:
    """Calls fsync on a file or on a folder. On a folder, this makes new and renamed entries durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _newest_first(folder: Path) -> list[Path]:
    return sorted((p for p in folder.iterdir() if p.name.startswith(_PREFIX) and p.is_dir()), reverse=True)


def _fingerprint(path: Path) -> str:
    data = path.read_bytes()
    return f"{len(data)}:{hashlib.sha256(data).hexdigest()}"
