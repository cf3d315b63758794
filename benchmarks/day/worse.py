"""Makes a worse speculator out of an exported one: same files and shapes, but the weights of the heads are noise."""

import zipfile
from pathlib import Path

import torch
from safetensors.torch import load, save

_SEED = 20261127


def spoil(archive: Path, to: Path) -> Path:
    """Writes an archive in the format `medusa` in which all matrices of the heads are noise. Returns its path.

    The noise has the magnitude of the hidden state, so it outweighs the hidden state that each head adds to it. The
    model's own `lm_head`, which the format contains as well, does not change.
    """
    with zipfile.ZipFile(archive) as source, zipfile.ZipFile(to, "w") as target:
        for entry in source.infolist():
            content = source.read(entry)
            target.writestr(entry.filename, _noise(content) if entry.filename.endswith(".safetensors") else content)
    return to


def _noise(content: bytes) -> bytes:
    generator = torch.Generator().manual_seed(_SEED)
    tensors = load(content)
    for name, tensor in tensors.items():
        if name.startswith("blocks."):
            tensors[name] = torch.randn(tensor.shape, generator=generator).to(tensor.dtype)
    return save(tensors)
