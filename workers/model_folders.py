"""The rules for folders of models and speculators that come from outside the service. Standard library only.

An accepted folder contains no code: its files are JSON, text and safetensors, and no configuration may make a loader
import Python files. A checkpoint is refused if the engine cannot read its quantization method, because the engine would
load the weights without their scales.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

MODEL_NAMES = (
    "config.json",
    "generation_config.json",
    "tokenizer*.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "*.safetensors",
    "*.safetensors.index.json",
    "quantize_config.json",
    "quant_config.json",
    "LICENSE*",
    "*.md",
    ".gitattributes",
)
SPECULATOR_NAMES = (*MODEL_NAMES, "adapter_config.json", "draft_vocab.json", "provenance.json", "report.json")
CONFIG_NAMES = ("config.json", "adapter_config.json", "tokenizer_config.json", "generation_config.json")
# These keys make a loader import Python files, or allow it to.
CODE_KEYS = frozenset({"auto_map", "custom_pipelines", "custom_generate", "trust_remote_code"})
# The values of these keys describe how the weights of a checkpoint are quantized.
QUANTIZATION_KEYS = ("quantization_config", "compression_config", "quantization")
# Quantization tools write these files beside config.json. AutoGPTQ and AutoAWQ write the last two.
MODELOPT_FILE = "hf_quant_config.json"
QUANTIZATION_FILES = frozenset({MODELOPT_FILE, "quantize_config.json", "quant_config.json"})
READABLE_QUANTIZATION = ("fp8", "fbgemm_fp8", "compressed-tensors", "awq", "gptq", "mxfp4")  # engine/models/quantized
QUANTIZED_CHECKPOINT = "quantized_checkpoint"  # the error code for a folder with unreadable quantization
MAX_JSON_BYTES = 64 << 20
_TOKENIZER_NAMES = (
    *("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json", "merges.txt"),
    *("special_tokens_map.json", "added_tokens.json"),
)
_TEMPLATE_NAMES = ("chat_template.jinja", "chat_template.json", "additional_chat_templates/*.jinja")


def code_key(values: Any) -> str | None:
    """Returns a key of the configuration that is in `CODE_KEYS`, or None.

    Keys at any depth count, because a configuration may contain the configurations of submodels.
    """
    for value in _objects(values):
        if code_keys := CODE_KEYS & value.keys():
            return min(code_keys)
    return None


def quantization_method(values: Any) -> str | None:
    """Returns the method with which the weights are quantized according to config.json, or None if they are not.

    Returns "unknown" if the configuration does not name the method. Keys at any depth count, as in `code_key`.
    """
    for value in _objects(values):
        for key in QUANTIZATION_KEYS:
            if value.get(key):
                return _method(value[key])
    return None


def unreadable_quantization(config: dict[str, Any], file_names: Iterable[str]) -> str | None:
    """Returns an error message if the engine cannot read the way in which the weights are quantized, otherwise None.

    config: the contents of config.json. file_names: the names of the folder's files. The engine checks the details of a
    readable method when it loads the model.
    """
    method = quantization_method(config)
    readable = [key for key in QUANTIZATION_KEYS[:2] if _is_readable(config.get(key))]
    if method is not None and not readable:
        return quantized_message(method, "config.json")
    for name in sorted(QUANTIZATION_FILES.intersection(file_names)):
        # AutoGPTQ and AutoAWQ also write the contents of their file into config.json; ModelOpt does not.
        if not readable or name == MODELOPT_FILE:
            return quantized_message("unknown", name)
    return None


def quantized_message(method: str, file: str) -> str:
    return (
        f"{file} describes a quantized checkpoint (method {method}), whose weights cannot be read; methods that can be "
        f"read are {', '.join(READABLE_QUANTIZATION)}, described in config.json: "
        "upload the bf16 checkpoint from which it was made"
    )


def texts_sha256(folder: Path) -> dict[str, str]:
    """Returns the digests of the files that turn texts into token ids. Raises: OSError, ValueError."""
    return {"tokenizer_sha256": tokenizer_sha256(folder), "chat_template_sha256": chat_template_sha256(folder)}


def changed_texts(before: Mapping[str, str] | None, now: Mapping[str, str] | None) -> str | None:
    """Returns the differences between two results of `texts_sha256`, such as "tokenizer and chat template", or None if
    no difference is known."""
    names = {"tokenizer_sha256": "tokenizer", "chat_template_sha256": "chat template"}
    before, now = before or {}, now or {}
    changed = [name for key, name in names.items() if key in before and key in now and before[key] != now[key]]
    return " and ".join(changed) or None


def tokenizer_sha256(folder: Path) -> str:
    """Returns the SHA-256 over the tokenizer's files without the chat template. Raises: OSError, ValueError."""
    digest = hashlib.sha256()
    for name in _TOKENIZER_NAMES:
        path = folder / name
        if not path.is_file():
            continue
        content = path.read_bytes()
        if name == "tokenizer_config.json":
            values = {key: value for key, value in json.loads(content).items() if key != "chat_template"}
            content = json.dumps(values, sort_keys=True).encode()
        digest.update(f"{name}\0{hashlib.sha256(content).hexdigest()}\n".encode())
    return digest.hexdigest()


def chat_template_sha256(folder: Path) -> str:
    """Returns the SHA-256 over the chat templates of all files that may hold one. Raises: OSError, ValueError."""
    config = folder / "tokenizer_config.json"
    template = json.loads(config.read_bytes()).get("chat_template") if config.is_file() else None
    digest = hashlib.sha256(json.dumps(template, sort_keys=True).encode())
    for path in (path for pattern in _TEMPLATE_NAMES for path in sorted(folder.glob(pattern))):
        digest.update(f"\n{path.name}\0{hashlib.sha256(path.read_bytes()).hexdigest()}".encode())
    return digest.hexdigest()


def _is_readable(described: Any) -> bool:
    return isinstance(described, dict) and described.get("quant_method") in READABLE_QUANTIZATION


def _method(described: Any) -> str:
    if not isinstance(described, dict):
        return str(described)[:40]
    if described.get("load_in_8bit") or described.get("load_in_4bit"):
        return "bitsandbytes"
    named = described.get("quant_method") or described.get("quant_algo")
    return named[:40] if isinstance(named, str) else "unknown"


def _objects(values: Any) -> Iterator[dict[str, Any]]:
    """Yields all objects of a JSON value, at any depth."""
    pending = [values]
    while pending:
        value = pending.pop()
        if isinstance(value, dict):
            yield value
            pending += value.values()
        elif isinstance(value, list):
            pending += value
