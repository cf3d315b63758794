"""Reads, checks and writes artifacts of speculators. Training writes artifacts as well, and the engine serves them.

An artifact is a folder with config.json, weights, provenance.json and further files of its kind (docs/exports.md).
"""

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from workers.exports.errors import invalid
from workers.exports.folder import TOKENIZER_NAMES, read_json, read_weights, section, write_json
from workers.exports.target import Target
from workers.exports.tensors import Stored, write_tensors
from workers.kinds import TRAINED_KINDS

MODEL_TYPES = ("llama", "mistral", "qwen2", "qwen3")  # allowed for draft models
HEADS_FILE, VOCAB_FILE = "medusa_lm_head.safetensors", "draft_vocab.safetensors"
ADAPTER_FILE = "adapter_model.safetensors"
WEIGHTS_FILE = "model.safetensors"


@dataclass(frozen=True, slots=True, kw_only=True)
class Artifact:
    """A speculator in this project's own format.

    config: the contents of config.json.
    tensors: the tensors of all files, by name. Names of LoRA tensors begin with `base_model.`.
    """

    kind: str
    config: dict[str, Any]
    tensors: dict[str, Stored]
    adapter: dict[str, Any] | None = None  # adapter_config.json of turbo_lora
    tokenizer: tuple[Path, ...] = ()  # a draft model's tokenizer files

    @classmethod
    def read(cls, folder: Path) -> "Artifact":
        """Reads an artifact of this project. Raises: ExchangeError."""
        config = read_json(folder / "config.json")
        name, kind = _kind_of(config, has_adapter=(folder / "adapter_config.json").exists())
        adapter = read_json(folder / "adapter_config.json") if kind.has_adapter else None
        tokenizer = tokenizer_files(folder) if kind.has_tokenizer else ()
        return cls(kind=name, config=config, tensors=read_weights(folder), adapter=adapter, tokenizer=tokenizer)

    @property
    def heads(self) -> dict[str, Any]:
        """Returns the sizes of the Medusa heads; only for the kinds medusa and turbo_lora."""
        return section(self.config, "slipstream")

    @property
    def draft_vocab(self) -> list[int]:
        """Returns the token ids of the draft vocabulary; only for the kinds medusa and turbo_lora."""
        return self.tensors["draft_vocab"].integers()

    def check(self, target: Target) -> None:
        """Raises: ExchangeError: the artifact is damaged or does not fit the target."""
        artifact_kind(self.kind).check(self, target)

    def write(self, folder: Path, provenance: Mapping[str, Any]) -> None:
        """Writes the artifact into an existing folder."""
        write_json(folder / "config.json", self.config)
        write_json(folder / "provenance.json", provenance)
        for path in self.tokenizer:
            shutil.copyfile(path, folder / path.name)
        files: dict[str, dict[str, Stored]] = {}
        for name, tensor in self.tensors.items():
            files.setdefault(artifact_kind(self.kind).file_of(name), {})[name] = tensor
        for file, tensors in files.items():
            write_tensors(folder / file, tensors)
        if self.adapter is not None:
            write_json(folder / "adapter_config.json", self.adapter)


def tokenizer_files(folder: Path) -> tuple[Path, ...]:
    return tuple(sorted(path for pattern in TOKENIZER_NAMES for path in folder.glob(pattern)))


def is_adapter_tensor(name: str) -> bool:
    return name.startswith("base_model.")


class _Matches(Protocol):
    def __call__(self, config: Mapping[str, Any], *, has_adapter: bool) -> bool: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ArtifactKind:
    """The rules for artifacts of one kind. Each module of `workers.exports.kinds` defines them as KIND.

    check: raises ExchangeError if the artifact is damaged or does not fit the target.
    matches: tells whether config.json belongs to this kind, given whether the folder has a LoRA adapter. None: the kind
        is recognised by `speculators_types`.
    speculators_types: values of `speculators_model_type` in config.json, for kinds of the package `speculators`.
    file_of: returns the name of the file that has the tensor of the given name.
    has_adapter: whether the folder has a LoRA adapter.
    has_tokenizer: whether the folder has tokenizer files.
    """

    check: Callable[[Artifact, Target], None]
    matches: _Matches | None = None
    speculators_types: tuple[str, ...] = ()
    file_of: Callable[[str], str] = lambda tensor: WEIGHTS_FILE
    has_adapter: bool = False
    has_tokenizer: bool = False


def artifact_kind(kind: str) -> ArtifactKind:
    rules: ArtifactKind = import_module(f"workers.exports.kinds.{kind}").KIND
    return rules


def _kind_of(config: Mapping[str, Any], *, has_adapter: bool) -> tuple[str, ArtifactKind]:
    """Raises: ExchangeError."""
    for name in TRAINED_KINDS:
        kind = artifact_kind(name)
        if kind.matches is None:
            is_match = config.get("speculators_model_type") in kind.speculators_types
        else:
            is_match = kind.matches(config, has_adapter=has_adapter)
        if is_match:
            return name, kind
    raise invalid("config.json does not belong to a speculator of a supported kind")
