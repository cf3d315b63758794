"""The format of `transformers` for causal language models, in which most engines read a draft model.

Source: transformers' `save_pretrained`.
"""

import shutil
from pathlib import Path

from workers.exports.artifact import MODEL_TYPES, WEIGHTS_FILE, Artifact, tokenizer_files
from workers.exports.errors import invalid
from workers.exports.folder import read_json, read_weights, write_json
from workers.exports.target import Target
from workers.exports.tensors import write_tensors

NAME = "hugging_face"
KINDS = ("draft_model",)


def export(artifact: Artifact, target: Target, folder: Path) -> None:
    write_json(folder / "config.json", artifact.config)
    write_tensors(folder / WEIGHTS_FILE, artifact.tensors)
    for path in artifact.tokenizer:
        shutil.copyfile(path, folder / path.name)


def read(folder: Path, target: Target) -> Artifact:
    """Raises: ExchangeError."""
    config = read_json(folder / "config.json")
    if (kind := config.get("model_type")) not in MODEL_TYPES:
        raise invalid(f"model_type must be one of {', '.join(MODEL_TYPES)}, got {kind!r:.40}")
    for name in ("tokenizer_config.json", "generation_config.json"):
        if (folder / name).exists():
            read_json(folder / name)
    tokenizer = tokenizer_files(folder)
    if not any(path.name in ("tokenizer.json", "tokenizer.model", "vocab.json") for path in tokenizer):
        raise invalid("a draft model must have tokenizer.json, tokenizer.model or vocab.json; there is none of them")
    return Artifact(kind="draft_model", config=config, tensors=read_weights(folder), tokenizer=tokenizer)
