"""Reads the files of a speculator's folder. `check_folder` must run before any file of an uploaded folder is read."""

import json
from collections.abc import Mapping
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from workers.exports.errors import invalid
from workers.exports.tensors import Stored, read_tensors
from workers.model_folders import CONFIG_NAMES, MAX_JSON_BYTES, SPECULATOR_NAMES, code_key

TOKENIZER_NAMES = (
    "generation_config.json",  # not a tokenizer file, but engines read the end-of-sequence tokens from it
    "tokenizer*.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
)


def check_folder(folder: Path) -> None:
    """Raises: ExchangeError: there is a forbidden file, a link, a subfolder, or a configuration that refers to code."""
    for entry in sorted(folder.iterdir()):
        allowed = any(fnmatch(entry.name, pattern) for pattern in SPECULATOR_NAMES)
        if entry.is_symlink() or not entry.is_file() or not allowed:
            raise invalid(
                f"{entry.name:.120} may not be part of a speculator; allowed are {', '.join(SPECULATOR_NAMES)}"
            )
    for name in CONFIG_NAMES:
        if (folder / name).exists():
            read_json(folder / name)


def read_json(path: Path) -> dict[str, Any]:
    """Raises: ExchangeError: the file is missing, too long, not a JSON object, or refers to code."""
    if not path.is_file():
        raise invalid(f"there is no {path.name}")
    if path.stat().st_size > MAX_JSON_BYTES:
        raise invalid(f"{path.name} must be at most {MAX_JSON_BYTES:,} bytes")
    try:
        values = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise invalid(f"{path.name} is not JSON: {error}") from error
    if not isinstance(values, dict):
        raise invalid(f"{path.name} must hold an object")
    if (key := code_key(values)) is not None:
        raise invalid(f"{path.name} refers to Python code ({key}), which is never run")
    return values


def write_json(path: Path, values: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(values, indent=2) + "\n")


def read_weights(folder: Path) -> dict[str, Stored]:
    """Reads the tensors of all safetensors files of the folder.

    Raises: ExchangeError: there is no such file, a file is damaged, or two files have a tensor of the same name.
    """
    tensors: dict[str, Stored] = {}
    for path in sorted(folder.glob("*.safetensors")):
        for name, tensor in read_tensors(path).items():
            if name in tensors:
                raise invalid(f"tensor {name:.120} is in two files")
            tensors[name] = tensor
    if not tensors:
        raise invalid("there is no *.safetensors file; weights in other forms (.bin, .pt) are never read")
    return tensors


def integer(
    values: Mapping[str, Any], name: str, default: int | None = None, *, least: int = 1, most: int = 1 << 24
) -> int:
    """Returns the integer `name` of config.json. Raises: ExchangeError: it is not an integer in least..most."""
    value = values.get(name, default)
    if type(value) is not int or not least <= value <= most:
        raise invalid(f"config.json: {name} must be a whole number in {least}..{most}, got {value!r:.40}")
    return value


def section(values: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Returns the object `name` of config.json. Raises: ExchangeError: there is no such object."""
    value = values.get(name)
    if not isinstance(value, dict):
        raise invalid(f"config.json: {name} must be an object, got {value!r:.40}")
    return value
