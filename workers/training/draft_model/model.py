"""A draft model made from its target: some layers, the embedding, the final norm, and part of lm_head.

lm_head has the target's rows for the draft vocabulary. Its other rows are zero, so the tokens of these rows get the
logit 0, in training and when served, and are almost never drafted. The embedding and lm_head are not trained.

The layers are modules of `transformers`. Tests compare the engine's layers with these modules.
"""

import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, PretrainedConfig

from engine.config import DENSE_MODEL_TYPES
from engine.errors import SpeculatorNotLoadable

_WEIGHTS_FILE = "model.safetensors"
_HEAD = "lm_head.weight"
_OTHER_FILES = (  # files of a model's folder that are copied from the target
    *("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "special_tokens_map.json", "added_tokens.json"),
    *("vocab.json", "merges.txt", "chat_template.jinja", "generation_config.json"),
)


class DraftModel(nn.Module):
    """The trained module of a draft model.

    layers: the model that `AutoModel` loads; it includes the embedding and the final norm, but no lm_head.
    draft_vocab: [Vd] int64, ascending token ids.
    """

    draft_vocab: Tensor

    def __init__(self, layers: nn.Module, draft_vocab: Tensor) -> None:
        super().__init__()
        self.layers = layers
        self.register_buffer("draft_vocab", draft_vocab, persistent=False)
        layers.get_input_embeddings().requires_grad_(False)  # type: ignore[operator]

    @classmethod
    def from_target(cls, model_dir: Path, *, num_layers: int, draft_vocab: Tensor) -> "DraftModel":
        """Loads `num_layers` of the target's layers in float32; 0 stands for an eighth of the layers.

        Raises: SpeculatorNotLoadable: the target is not a dense decoder.
        """
        config = AutoConfig.from_pretrained(model_dir, trust_remote_code=False)
        if config.model_type not in DENSE_MODEL_TYPES:
            raise SpeculatorNotLoadable(f"draft models cannot be made from models of type {config.model_type}")
        layers = AutoModel.from_pretrained(model_dir, dtype=torch.float32, trust_remote_code=False)
        kept = kept_layers(config.num_hidden_layers, num_layers)
        layers.layers = nn.ModuleList([layers.layers[index] for index in kept])
        for index, layer in enumerate(layers.layers):
            layer.self_attn.layer_idx = index
        layers.config.num_hidden_layers = len(kept)
        if types := getattr(config, "layer_types", None):
            layers.config.layer_types = [types[index] for index in kept]
        return cls(layers, draft_vocab)

    @classmethod
    def load(cls, folder: Path) -> "DraftModel":
        """Loads a folder that `save` wrote, in float32. Raises: SpeculatorNotLoadable."""
        try:
            head = load_file(folder / _WEIGHTS_FILE)[_HEAD]
            layers = AutoModel.from_pretrained(folder, dtype=torch.float32, trust_remote_code=False)
        except (OSError, ValueError, KeyError) as error:
            raise SpeculatorNotLoadable(f"{folder.name} has no draft model that can be loaded: {error!r}") from error
        return cls(layers, (head != 0).any(dim=1).nonzero().flatten())  # only rows of the draft vocabulary are not 0

    @property
    def config(self) -> PretrainedConfig:
        config: PretrainedConfig = self.layers.config  # type: ignore[assignment]
        return config

    def forward(self, token_ids: Tensor) -> Tensor:
        """token_ids [B, L] int64, padded at the end -> hidden states [B, L, H] after the final norm."""
        out: Tensor = self.layers(input_ids=token_ids, use_cache=False).last_hidden_state
        return out

    def save(self, folder: Path, *, model_dir: Path, lm_head: Tensor, base_model: str) -> None:
        """Writes a model's folder, with weights in the dtype of `lm_head` [V, H], the target's lm_head."""
        head = torch.zeros_like(lm_head)
        head[self.draft_vocab] = lm_head[self.draft_vocab]
        tensors = {f"model.{name}": tensor.detach().to(head.dtype) for name, tensor in self.layers.state_dict().items()}
        tensors[_HEAD] = head
        save_file(
            {name: tensor.cpu().contiguous() for name, tensor in tensors.items()},
            folder / _WEIGHTS_FILE,
            metadata={"format": "pt"},
        )
        (folder / "config.json").write_text(self._published(head.dtype, base_model).to_json_string())
        for name in _OTHER_FILES:
            if (model_dir / name).exists():
                shutil.copyfile(model_dir / name, folder / name)

    def _published(self, dtype: torch.dtype, base_model: str) -> PretrainedConfig:
        values: dict[str, Any] = self.config.to_dict() | {
            "tie_word_embeddings": False,
            "dtype": str(dtype).removeprefix("torch."),
            "base_model_name_or_path": base_model,
        }
        values.pop("_name_or_path", None)
        kind = values.pop("model_type")
        return AutoConfig.for_model(kind, **values)


def kept_layers(num_layers: int, wanted: int) -> list[int]:
    """Returns the indices of `wanted` layers, spread evenly from first to last; 0 stands for an eighth of all."""
    count = min(num_layers, wanted or max(1, num_layers // 8))
    return [index * (num_layers - 1) // max(1, count - 1) for index in range(count)]


def head_for_training(lm_head: Tensor, draft_vocab: Tensor) -> Tensor:
    """Returns a smaller head [Vd + 1, H + 1] float32 for training.

    Each draft token has the same probability as with the served lm_head, which has V rows. One row stands for all of
    the other V - Vd tokens, whose logits are 0. Its logit is always log(V - Vd), because
    (V - Vd) exp(0) = exp(log(V - Vd)). The additional column contains this constant, so the input is a hidden state
    with a 1 appended.
    """
    num_others = lm_head.shape[0] - draft_vocab.shape[0]
    rows = nn.functional.pad(lm_head[draft_vocab].float(), (0, 1))
    rest = torch.zeros(1, rows.shape[1], device=rows.device)
    rest[0, -1] = torch.tensor(float(num_others)).log()  # -inf if num_others is 0; the return statement clamps it
    return torch.cat([rows, rest.clamp(min=-1e4)])
