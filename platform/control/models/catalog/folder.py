"""Checks a model's folder before anything loads it, and reports why a folder is refused. This module needs no Django.

`workers.model_folders` contains the rules that keep code and unreadable weights out of a folder. This module checks
that the header of each safetensors file accounts for every byte. The revision of a model is the SHA-256 over its config
and its weights.
"""

import hashlib
import json
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from workers.model_folders import (
    CONFIG_NAMES,
    MAX_JSON_BYTES,
    MODEL_NAMES,
    MODELOPT_FILE,
    QUANTIZED_CHECKPOINT,
    code_key,
    quantized_message,
    texts_sha256,
    unreadable_quantization,
)
from workers.model_sizes import ModelSizes, UnknownSizes
from workers.model_types import VERDICTS
from workers.stored_weights import read_stored

TOKENIZER_NAMES = ("tokenizer.json", "tokenizer.model", "vocab.json")
MAX_HEADER_BYTES = 16 << 20
MAX_TENSORS = 20_000
_ITEM_BITS = {
    "F64": 64, "F32": 32, "F16": 16, "BF16": 16, "F8_E4M3": 8, "F8_E5M2": 8,
    "I64": 64, "I32": 32, "I16": 16, "I8": 8, "U64": 64, "U32": 32, "U16": 16, "U8": 8, "BOOL": 8,
}  # fmt: skip


class UnusableModel(ValueError):
    """The folder does not contain a model that can be served. `code` is a stable error code of the API."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


@dataclass(frozen=True, slots=True)
class ModelFolder:
    path: Path
    model_type: str
    revision: str  # SHA-256, hexadecimal
    sizes: dict[str, Any] | None  # `ModelSizes` as a dictionary; None: the model's memory cannot be planned
    texts: dict[str, str]  # SHA-256 of the tokenizer and of the chat template, from `texts_sha256`

    def columns(self) -> dict[str, Any]:
        """Returns the values of a `BaseModel`'s columns."""
        names = ("model_type", "revision", "sizes", "texts")
        return {"path": str(self.path)} | {name: getattr(self, name) for name in names}


def inspect_folder(path: Path) -> ModelFolder:
    """Checks the folder, and reads every byte of the weights once to compute the revision. Raises: UnusableModel."""
    if not path.is_dir():
        raise UnusableModel("model_folder_missing", f"there is no folder {path}")
    _check_names(path)
    config = _read_json(path / "config.json")
    for name in CONFIG_NAMES:
        if (path / name).exists() and (key := code_key(_read_json(path / name))) is not None:
            raise UnusableModel("model_code_forbidden", f"{name} refers to Python code ({key}), which is never run")
    if (message := unreadable_quantization(config, (entry.name for entry in path.iterdir()))) is not None:
        raise UnusableModel(QUANTIZED_CHECKPOINT, message)
    model_type = config.get("model_type")
    if not isinstance(model_type, str) or model_type not in VERDICTS:
        message = f"model_type must be one of transformers' causal language models, got {model_type!r:.80}"
        raise UnusableModel("model_type_unsupported", message)
    if (reason := VERDICTS[model_type]) is not None:
        raise UnusableModel("model_type_unsupported", f"models of type {model_type} are not served: {reason}")
    weights = sorted(path.glob("*.safetensors"))
    if not weights:
        raise UnusableModel("model_weights_missing", f"{path} holds no *.safetensors")
    if not any((path / name).exists() for name in TOKENIZER_NAMES):
        raise UnusableModel("model_tokenizer_missing", f"{path} holds none of {', '.join(TOKENIZER_NAMES)}")
    for file in weights:
        check_safetensors(file)
    revision = _revision([path / "config.json", *weights])
    return ModelFolder(
        path=path, model_type=model_type, revision=revision, sizes=_sizes(config, path), texts=texts_sha256(path)
    )


def _sizes(config: dict[str, Any], path: Path) -> dict[str, Any] | None:
    try:
        return asdict(ModelSizes.of(config, read_stored(path)))
    except UnknownSizes:
        return None


def _check_names(path: Path) -> None:
    for entry in sorted(path.iterdir()):
        if entry.is_symlink():
            message = f"{entry.name} is a symbolic link: copy the folder with its links followed (cp -rL)"
            raise UnusableModel("model_file_forbidden", message)
        check_name(entry.name if entry.is_file() else f"{entry.name}/")


def check_name(name: str) -> None:
    """Args: name: a file's name, or a folder's name and a `/`. Raises: UnusableModel: the name is not allowed."""
    if name == MODELOPT_FILE:
        raise UnusableModel(QUANTIZED_CHECKPOINT, quantized_message("unknown", name))
    if "/" in name or not any(fnmatch(name, pattern) for pattern in MODEL_NAMES):
        message = f"{name[:200]} is not allowed in a model's folder; allowed are {', '.join(MODEL_NAMES)}"
        raise UnusableModel("model_file_forbidden", message)


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise UnusableModel("model_config_missing", f"{path.parent} holds no {path.name}")
    if path.stat().st_size > MAX_JSON_BYTES:
        raise UnusableModel("model_config_invalid", f"{path.name} must be at most {MAX_JSON_BYTES:,} bytes")
    try:
        values = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise UnusableModel("model_config_invalid", f"{path.name} is not JSON: {error}") from error
    if not isinstance(values, dict):
        raise UnusableModel("model_config_invalid", f"{path.name} must hold an object")
    return values


def check_safetensors(path: Path) -> None:
    """Checks that the header fits the file's size and that the tensors fill the data without gaps or overlaps.

    Raises: UnusableModel.
    Source: https://github.com/huggingface/safetensors, "Format".
    """
    try:
        end = 0
        for begin, stop, expected in sorted(_spans(path)):
            if begin != end or stop - begin != expected:
                raise ValueError(f"bytes {begin}..{stop} should begin at {end} and be {expected} long")
            end = stop
        with path.open("rb") as file:
            data_bytes = path.stat().st_size - 8 - int.from_bytes(file.read(8), "little")
        if end != data_bytes:
            raise ValueError(f"the tensors end at byte {end} of {data_bytes}")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise UnusableModel("model_weights_invalid", f"{path.name} is not a safetensors file: {error}") from error


def _spans(path: Path) -> Iterator[tuple[int, int, int]]:
    """Yields the first byte, the end and the expected length of every tensor, relative to the header's end."""
    with path.open("rb") as file:
        header_bytes = int.from_bytes(file.read(8), "little")
        if not 2 <= header_bytes <= min(MAX_HEADER_BYTES, path.stat().st_size - 8):
            raise ValueError(f"the header cannot have {header_bytes:,} bytes")
        header = json.loads(file.read(header_bytes))
    header.pop("__metadata__", None)
    if not 1 <= len(header) <= MAX_TENSORS:
        raise ValueError(f"a file holds 1 to {MAX_TENSORS:,} tensors, got {len(header):,}")
    for tensor in header.values():
        begin, stop = tensor["data_offsets"]
        shape = tensor["shape"]
        if not all(isinstance(n, int) and n >= 0 for n in (begin, stop, *shape)):
            raise ValueError("offsets and shapes must be integers of at least 0")
        yield begin, stop, math.prod(shape) * _ITEM_BITS[tensor["dtype"]] // 8


def _revision(files: list[Path]) -> str:
    """Hashes names and contents, so that renaming a weight file changes the revision too."""
    digest = hashlib.sha256()
    for path in files:
        with path.open("rb") as file:
            digest.update(f"{path.name}\0{hashlib.file_digest(file, 'sha256').hexdigest()}\n".encode())
    return digest.hexdigest()
