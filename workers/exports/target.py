"""The name, the sizes and the lm_head of a speculator's target model, which imports and exports need."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workers.exports.errors import unsupported
from workers.exports.folder import integer, read_json, read_weights
from workers.exports.tensors import Stored

_HEADS = ("lm_head.weight", "model.embed_tokens.weight")  # models with a tied lm_head have only the embedding


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A target model. name: the model's path or repository id in the other engine."""

    name: str
    folder: Path
    config: dict[str, Any]

    @classmethod
    def read(cls, folder: Path, *, name: str | None = None) -> "Target":
        """Reads config.json in the model's folder. Raises: ExchangeError: it is missing or invalid."""
        return cls(name=name or str(folder), folder=folder, config=read_json(folder / "config.json"))

    @property
    def hidden_size(self) -> int:
        return integer(self.config, "hidden_size")

    @property
    def vocab_size(self) -> int:
        return integer(self.config, "vocab_size")

    @property
    def num_layers(self) -> int:
        return integer(self.config, "num_hidden_layers")

    @property
    def verifier(self) -> dict[str, Any]:
        """Returns the object `verifier` of a config.json of the package `speculators`, which describes the target."""
        return {"name_or_path": self.name, "architectures": self.config.get("architectures") or []}

    def lm_head(self) -> Stored:
        """Returns the lm_head [V, H], with vocabulary V and hidden size H. Raises: ExchangeError."""
        tensors = read_weights(self.folder)
        for name in _HEADS:
            if name in tensors and tensors[name].shape == (self.vocab_size, self.hidden_size):
                return tensors[name]
        raise unsupported(f"the format needs a copy of lm_head, but the model has no tensor {' or '.join(_HEADS)}")
