"""Refuses a speculator that was trained with another tokenizer or chat template than the model has now.

With another tokenizer, the same token ids stand for other texts. With another template, the model gives other answers
than those from which the speculator has learnt. The training records the digests of tokenizer and template in
the speculator's provenance.json.
"""

import json
from pathlib import Path

from engine.errors import SpeculatorNotLoadable
from workers.model_folders import changed_texts, texts_sha256


def target_texts(model_dir: Path) -> dict[str, str]:
    """Returns digests of the tokenizer and the chat template. Raises: OSError, ValueError: a file cannot be read."""
    return texts_sha256(model_dir)


def check_target_texts(speculator_dir: Path, model_dir: Path) -> None:
    """Compares the digests that the training recorded with the model's digests.

    A speculator without recorded digests, such as an imported one, is accepted. Raises: SpeculatorNotLoadable: the
    tokenizer or the chat template differs.
    """
    try:
        trained = json.loads((speculator_dir / "provenance.json").read_bytes())
    except (OSError, ValueError):
        return
    changed = changed_texts(trained if isinstance(trained, dict) else None, target_texts(model_dir))
    if changed is not None:
        raise SpeculatorNotLoadable(
            f"the speculator was trained with another {changed} than the model has now: "
            "restore the model's files, or train a speculator for them"
        )
