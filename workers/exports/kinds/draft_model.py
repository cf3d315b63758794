"""Draft models: small causal models with the target's vocabulary."""

from collections.abc import Mapping
from typing import Any

from workers.exports.artifact import MODEL_TYPES, Artifact, ArtifactKind
from workers.exports.errors import invalid
from workers.exports.folder import integer
from workers.exports.target import Target
from workers.exports.tensors import FLOATS

# Largest difference between the vocabulary sizes, as in engine.drafters.draft_model. That module imports torch.
_MAX_PADDING = 128


def _check_model(artifact: Artifact, target: Target) -> None:
    """Checks the vocabulary, and names and dtypes of tensors. The engine checks most shapes when it loads the model."""
    vocab = integer(artifact.config, "vocab_size")
    if abs(vocab - target.vocab_size) > _MAX_PADDING:
        raise invalid(f"the draft model must have the model's vocabulary of {target.vocab_size}, got {vocab}")
    for name, tensor in artifact.tensors.items():
        if not name.startswith(("model.", "lm_head.")) or tensor.dtype not in FLOATS:
            raise invalid(f"tensor {name:.120} has a name or dtype that a draft model cannot have")
    embedding = artifact.tensors.get("model.embed_tokens.weight")
    if embedding is None or embedding.shape != (vocab, integer(artifact.config, "hidden_size")):
        raise invalid("model.embed_tokens.weight is missing, or its shape is not the one that config.json states")


def _matches(config: Mapping[str, Any], *, has_adapter: bool) -> bool:
    return config.get("speculators_model_type") is None and config.get("model_type") in MODEL_TYPES


KIND = ArtifactKind(check=_check_model, matches=_matches, has_tokenizer=True)
