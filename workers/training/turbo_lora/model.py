"""The target with LoRA on every product of its layers, as peft trains and stores it.

The layers are those of `transformers`, which the engine's own are tested against, with the adapter too.
"""

from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from engine.config import MODEL_TYPES
from engine.errors import SpeculatorNotLoadable
from workers.hyperparameters.turbo_lora import TurboLoraHyperparameters
from workers.training.preparation import Preparation

_PRODUCTS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
_MODEL_CARD = "README.md"  # peft's, empty but for a path


class AdaptedTarget(nn.Module):
    """Only the adapter's weights require a gradient."""

    def __init__(self, preparation: Preparation, parameters: TurboLoraHyperparameters) -> None:
        """In float32. Raises: SpeculatorNotLoadable: it takes no adapter, or `preparation.initial` holds none."""
        from peft import LoraConfig, PeftModel, get_peft_model  # late: takes seconds, and other kinds need none of it

        super().__init__()
        kind = preparation.target.config.model_type
        if kind not in MODEL_TYPES or kind == "deepseek_v3":
            raise SpeculatorNotLoadable(f"LoRA is not supported for models of type {kind}")
        base = AutoModelForCausalLM.from_pretrained(preparation.model_dir, dtype=torch.float32, trust_remote_code=False)
        if preparation.initial is not None:
            try:
                self.peft = PeftModel.from_pretrained(base, preparation.initial, is_trainable=True)
            except (OSError, ValueError, RuntimeError) as error:
                raise SpeculatorNotLoadable(f"{preparation.initial.name} holds no adapter: {error!r}") from error
        else:
            torch.manual_seed(preparation.seed)
            config = LoraConfig(
                r=parameters.rank, lora_alpha=parameters.alpha, target_modules=_PRODUCTS, task_type="CAUSAL_LM"
            )
            self.peft = get_peft_model(base, config)

    def forward(self, token_ids: Tensor) -> Tensor:
        """token_ids [B, L] int64, padded at their ends -> hidden states [B, L, H] after the final norm."""
        decoder = self.peft.get_base_model().get_decoder()  # type: ignore[operator]
        out: Tensor = decoder(input_ids=token_ids, use_cache=False).last_hidden_state
        return out

    def save(self, folder: Path, *, base_model: str) -> None:
        """Writes adapter_config.json and adapter_model.safetensors into an existing folder."""
        self.peft.peft_config["default"].base_model_name_or_path = base_model
        self.peft.save_pretrained(str(folder), save_embedding_layers=False)
        (folder / _MODEL_CARD).unlink(missing_ok=True)
