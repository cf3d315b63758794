"""A speculator as training leaves it and the engine serves it: a folder of one kind, checked against its model.

config.json   weights   provenance.json   and what else its kind has (docs/exports.md)
"""

import itertools
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workers.exports.errors import invalid
from workers.exports.folder import TOKENIZER_NAMES, integer, read_json, read_weights, section, write_json
from workers.exports.shapes import MOST, block_tensors, check, eagle3_tensors, medusa_tensors, mtp_tensors
from workers.exports.target import Target
from workers.exports.tensors import FLOATS, Stored, write_tensors

KINDS = ("medusa", "turbo_lora", "eagle3", "mtp", "block", "draft_model")
MODEL_TYPES = ("llama", "mistral", "qwen2", "qwen3")  # of draft models
HEADS_FILE, VOCAB_FILE = "medusa_lm_head.safetensors", "draft_vocab.safetensors"
ADAPTER_FILE = "adapter_model.safetensors"
WEIGHTS_FILE = "model.safetensors"
_MAX_PADDING = 128  # as engine.drafters.draft_model has it


@dataclass(frozen=True, slots=True, kw_only=True)
class Artifact:
    """config: config.json. tensors: by name, those of all files; LoRA's among them begin with `base_model.`."""

    kind: str
    config: dict[str, Any]
    tensors: dict[str, Stored]
    adapter: dict[str, Any] | None = None  # adapter_config.json of turbo_lora
    beside: tuple[Path, ...] = ()  # a draft model's tokenizer

    @classmethod
    def read(cls, folder: Path) -> "Artifact":
        """One of ours. Raises: ExchangeError."""
        config = read_json(folder / "config.json")
        kind = _kind_of(config, has_adapter=(folder / "adapter_config.json").exists())
        adapter = read_json(folder / "adapter_config.json") if kind == "turbo_lora" else None
        beside = tokenizer_files(folder) if kind == "draft_model" else ()
        return cls(kind=kind, config=config, tensors=read_weights(folder), adapter=adapter, beside=beside)

    @property
    def heads(self) -> dict[str, Any]:
        """Of medusa and turbo_lora: sizes."""
        return section(self.config, "slipstream")

    @property
    def draft_vocab(self) -> list[int]:
        """Of medusa and turbo_lora: ids of the target."""
        return self.tensors["draft_vocab"].integers()

    def check(self, target: Target) -> None:
        """Raises: ExchangeError: it is damaged, or for a model of other sizes."""
        _CHECKS[self.kind](self, target)

    def write(self, folder: Path, provenance: Mapping[str, Any]) -> None:
        """Into an existing folder."""
        write_json(folder / "config.json", self.config)
        write_json(folder / "provenance.json", provenance)
        for path in self.beside:
            shutil.copyfile(path, folder / path.name)
        if self.kind not in ("medusa", "turbo_lora"):
            write_tensors(folder / WEIGHTS_FILE, self.tensors)
            return
        parts: dict[str, dict[str, Stored]] = {HEADS_FILE: {}, VOCAB_FILE: {}, ADAPTER_FILE: {}}
        for name, tensor in self.tensors.items():
            file = VOCAB_FILE if name == "draft_vocab" else ADAPTER_FILE if of_adapter(name) else HEADS_FILE
            parts[file][name] = tensor
        for file, tensors in parts.items():
            if tensors:
                write_tensors(folder / file, tensors)
        if self.adapter is not None:
            write_json(folder / "adapter_config.json", self.adapter)


def tokenizer_files(folder: Path) -> tuple[Path, ...]:
    return tuple(sorted(path for pattern in TOKENIZER_NAMES for path in folder.glob(pattern)))


def of_adapter(name: str) -> bool:
    return name.startswith("base_model.")


def _kind_of(config: Mapping[str, Any], *, has_adapter: bool) -> str:
    kind = config.get("speculators_model_type")
    if "medusa_num_heads" in config:
        return "turbo_lora" if has_adapter else "medusa"
    if kind in ("dflash", "dspark"):
        return "block"
    if kind in ("eagle3", "mtp"):
        return str(kind)
    if kind is None and config.get("model_type") in MODEL_TYPES:
        return "draft_model"
    raise invalid("config.json belongs to no speculator of ours")


def _check_sizes(target: Target, *, hidden: int, vocab: int) -> None:
    if (hidden, vocab) != (target.hidden_size, target.vocab_size):
        raise invalid(
            f"it is for hidden size {hidden} and {vocab} tokens, "
            f"the model has {target.hidden_size} and {target.vocab_size}"
        )


def _check_taps(taps: object, target: Target) -> None:
    if (
        not isinstance(taps, list)
        or not taps
        or not all(type(tap) is int and 0 <= tap <= target.num_layers for tap in taps)
    ):
        raise invalid(f"tapped layers must be in 0..{target.num_layers}, got {taps!r:.80}")


def _check_vocab(vocab: list[int], target: Target) -> None:
    if not all(a < b for a, b in itertools.pairwise(vocab)) or vocab[0] < 0 or vocab[-1] >= target.vocab_size:
        raise invalid(f"the draft vocabulary must be ascending ids below {target.vocab_size}")


def _check_offsets(artifact: Artifact, target: Target) -> None:
    if (offsets := artifact.tensors.get("d2t")) is not None:
        _check_vocab([place + offset for place, offset in enumerate(offsets.integers())], target)


def _check_eagle3(artifact: Artifact, target: Target) -> None:
    layer = section(artifact.config, "transformer_layer_config")
    check(artifact.tensors, eagle3_tensors(artifact.config))
    hidden = artifact.config.get("target_hidden_size") or integer(layer, "hidden_size")
    _check_sizes(target, hidden=hidden, vocab=integer(layer, "vocab_size"))
    if (taps := artifact.config.get("eagle_aux_hidden_state_layer_ids")) is not None:
        _check_taps(taps, target)
    _check_offsets(artifact, target)


def _check_block(artifact: Artifact, target: Target) -> None:
    layer = section(artifact.config, "transformer_layer_config")
    check(artifact.tensors, block_tensors(artifact.config))
    _check_sizes(target, hidden=integer(layer, "hidden_size"), vocab=integer(layer, "vocab_size"))
    _check_taps(artifact.config.get("aux_hidden_state_layer_ids"), target)
    _check_offsets(artifact, target)
    integer(artifact.config, "block_size", most=MOST)
    if integer(artifact.config, "mask_token_id", least=0) >= target.vocab_size:
        raise invalid(f"mask_token_id must be below {target.vocab_size}")


def _check_mtp(artifact: Artifact, target: Target) -> None:
    layer = section(artifact.config, "transformer_layer_config")
    methods = section(artifact.config, "speculators_config").get("proposal_methods")
    if not isinstance(methods, list) or not methods or not isinstance(methods[0], dict):
        raise invalid("speculators_config must have proposal_methods, the first of which says speculative_tokens")
    integer(methods[0], "speculative_tokens", most=MOST)
    check(artifact.tensors, mtp_tensors(artifact.config))
    _check_sizes(target, hidden=integer(layer, "hidden_size"), vocab=integer(layer, "vocab_size"))


def _check_heads(artifact: Artifact, target: Target) -> None:
    heads = {name: tensor for name, tensor in artifact.tensors.items() if not of_adapter(name)}
    check(heads, medusa_tensors(artifact.heads))
    _check_sizes(target, hidden=integer(artifact.heads, "hidden_size"), vocab=target.vocab_size)
    _check_vocab(artifact.draft_vocab, target)
    if (artifact.kind == "turbo_lora") != (len(heads) < len(artifact.tensors)):
        raise invalid("adapter_config.json and LoRA tensors come together or not at all")


def _check_model(artifact: Artifact, target: Target) -> None:
    """Its own tensors the engine checks when it loads it, as it does any model's."""
    vocab = integer(artifact.config, "vocab_size")
    if abs(vocab - target.vocab_size) > _MAX_PADDING:
        raise invalid(f"the draft model must have the model's vocabulary of {target.vocab_size}, got {vocab}")
    for name, tensor in artifact.tensors.items():
        if not name.startswith(("model.", "lm_head.")) or tensor.dtype not in FLOATS:
            raise invalid(f"tensor {name:.120} belongs to no draft model")
    embedding = artifact.tensors.get("model.embed_tokens.weight")
    if embedding is None or embedding.shape != (vocab, integer(artifact.config, "hidden_size")):
        raise invalid("model.embed_tokens.weight is missing or of another shape than config.json says")


_CHECKS = {
    "medusa": _check_heads,
    "turbo_lora": _check_heads,
    "eagle3": _check_eagle3,
    "mtp": _check_mtp,
    "block": _check_block,
    "draft_model": _check_model,
}
