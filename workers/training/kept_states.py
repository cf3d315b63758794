"""Stores hidden states in files, so that later runs on the same answers need not run the target again.

A folder must be used with only one model, device and dtype. It has one file per conversation, named by the hash of the
conversation's tokens. If a run needs a layer that the file lacks, the file is computed again with all old and new
layers.
"""

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from engine.models.base import Hidden, Model

_FINAL = "final"


class KeptStates:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def of(self, model: Model, token_ids: Sequence[int], tap_layers: Sequence[int]) -> Hidden:
        """Returns the result of `Model.hidden_states`, read from the conversation's file if this file has all layers.

        Effects: if the file lacks a layer, computes the hidden states and writes the file, completely or not at all.
        """
        path = self._folder / f"{hashlib.sha256(repr(tuple(token_ids)).encode()).hexdigest()}.safetensors"
        stored = load_file(path, device=str(model.device)) if path.exists() else {}
        if not {_FINAL, *map(str, tap_layers)} <= stored.keys():
            stored = _computed(model, token_ids, {*tap_layers, *(int(name) for name in stored if name != _FINAL)})
            partial = path.with_suffix(f".{os.getpid()}")
            save_file(stored, partial)
            partial.rename(path)
        taps = torch.stack([stored[str(layer)] for layer in tap_layers], dim=1) if tap_layers else None
        return Hidden(stored[_FINAL], taps)


def _computed(model: Model, token_ids: Sequence[int], layers: set[int]) -> dict[str, Tensor]:
    """Runs the model and returns the tensors of a file: one for each layer, and the final hidden states."""
    wanted = sorted(layers)
    states = model.hidden_states(torch.tensor(token_ids, dtype=torch.int64, device=model.device), wanted)
    taps = () if states.taps is None else states.taps.unbind(1)
    return {str(layer): tap.contiguous() for layer, tap in zip(wanted, taps, strict=True)} | {_FINAL: states.final}
