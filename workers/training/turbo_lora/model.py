"""The target's last layers, with a LoRA adapter of peft on each of their linear layers.

The layers before the adapted layers do not change, so the input of the first adapted layer is computed only once. The
adapted layers are modules of `transformers`. Tests compare the engine's layers with these modules, both with and
without adapters.
"""

import re
from copy import copy
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from engine.config import DENSE_MODEL_TYPES
from engine.errors import SpeculatorNotLoadable
from workers.hyperparameters.turbo_lora import TurboLoraHyperparameters
from workers.training.preparation import Preparation

if TYPE_CHECKING:
    from peft import LoraConfig

_PRODUCTS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
_WEIGHTS_FILE = "adapter_model.safetensors"
_LAYER = re.compile(r"(?<=\.layers\.)\d+(?=\.)")


class AdaptedLayers(nn.Module):
    """The adapted layers, of which only the adapter's weights are trained.

    first: the number of the first adapted layer in the target.
    """

    def __init__(self, preparation: Preparation, parameters: TurboLoraHyperparameters) -> None:
        """Loads the layers in float32.

        Raises: SpeculatorNotLoadable: the target supports no adapter, or `preparation.initial` has none.
        """
        # Imported here, because importing peft takes seconds and few kinds need it.
        from peft import get_peft_model, set_peft_model_state_dict

        super().__init__()
        target = preparation.target.config
        if target.model_type not in DENSE_MODEL_TYPES:
            raise SpeculatorNotLoadable(f"LoRA is not supported for models of type {target.model_type}")
        initial = None if preparation.initial is None else _read(preparation.initial)
        count = min(target.num_layers, parameters.adapted_layers or max(1, target.num_layers // 4))
        self._num_layers = target.num_layers
        self.first = self._num_layers - count
        if initial is not None:
            self.first = min(int(_LAYER.findall(name)[0]) for name in initial[1])
        base = AutoModelForCausalLM.from_pretrained(preparation.model_dir, dtype=torch.float32, trust_remote_code=False)
        decoder = base.get_decoder()
        decoder.layers = decoder.layers[self.first :]
        torch.manual_seed(preparation.seed)
        self.peft = get_peft_model(base, _new_config(parameters) if initial is None else initial[0])
        if initial is not None:
            set_peft_model_state_dict(self.peft, _renumbered(initial[1], -self.first))

    def forward(self, layer_inputs: Tensor) -> Tensor:
        """layer_inputs [B, L, H], padded at the end -> final hidden states [B, L, H]."""
        decoder = self.peft.get_base_model().get_decoder()  # type: ignore[operator]
        out: Tensor = decoder(inputs_embeds=layer_inputs, use_cache=False).last_hidden_state
        return out

    def save(self, folder: Path, *, base_model: str) -> None:
        """Writes the files that peft would write for the whole model into an existing folder."""
        from peft import LoraConfig, get_peft_model_state_dict

        tensors = {n: t.detach().cpu().contiguous() for n, t in get_peft_model_state_dict(self.peft).items()}
        save_file(_renumbered(tensors, self.first), folder / _WEIGHTS_FILE, metadata={"format": "pt"})
        config = copy(self.peft.peft_config["default"])
        assert isinstance(config, LoraConfig)
        config.base_model_name_or_path = base_model
        config.layers_to_transform = list(range(self.first, self._num_layers))
        config.save_pretrained(str(folder))


def _new_config(parameters: TurboLoraHyperparameters) -> "LoraConfig":
    from peft import LoraConfig

    return LoraConfig(r=parameters.rank, lora_alpha=parameters.alpha, target_modules=_PRODUCTS, task_type="CAUSAL_LM")


def _read(folder: Path) -> "tuple[LoraConfig, dict[str, Tensor]]":
    """Raises: SpeculatorNotLoadable."""
    from peft import LoraConfig

    try:
        config = LoraConfig.from_pretrained(str(folder), inference_mode=False)
        config.base_model_name_or_path = None  # peft warns if this name is not the name of the loaded model
        config.layers_to_transform = None  # all remaining layers are adapted
        return config, load_file(folder / _WEIGHTS_FILE)
    except (OSError, ValueError, TypeError) as error:
        raise SpeculatorNotLoadable(f"{folder.name} has no adapter that can be loaded: {error!r}") from error


def _renumbered(tensors: dict[str, Tensor], by: int) -> dict[str, Tensor]:
    """Adds `by` to the layer number in each tensor's name."""
    return {_LAYER.sub(lambda match: str(int(match[0]) + by), name): tensor for name, tensor in tensors.items()}
