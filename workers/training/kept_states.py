"""Hidden states that are kept across runs, because running the target costs most and many runs use the same answers.

A folder belongs to one model, device and dtype. It has one file per conversation, named by the hash of the tokens. A
run that needs further layers recomputes the file of a conversation with all layers.
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
        """Returns what `Model.hidden_states` returns. Effects: a file is written completely or not at all."""
        path = self._folder / f"{hashlib.sha256(repr(tuple(token_ids)).encode()).hexdigest()}.safetensors"
        known = load_file(path, device=str(model.device)) if path.exists() else {}
        if not {_FINAL, *map(str, tap_layers)} <= known.keys():
            known = _computed(model, token_ids, {*tap_layers, *(int(name) for name in known if name != _FINAL)})
            partial = path.with_suffix(f".{os.getpid()}")
            save_file(known, partial)
            partial.rename(path)
        taps = torch.stack([known[str(layer)] for layer in tap_layers], dim=1) if tap_layers else None
        return Hidden(known[_FINAL], taps)


def _computed(model: Model, token_ids: Sequence[int], layers: set[int]) -> dict[str, Tensor]:
    wanted = sorted(layers)
    states = model.hidden_states(torch.tensor(token_ids, dtype=torch.int64, device=model.device), wanted)
    taps = () if states.taps is None else states.taps.unbind(1)
    return {str(layer): tap.contiguous() for layer, tap in zip(wanted, taps, strict=True)} | {_FINAL: states.final}
