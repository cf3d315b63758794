"""The training method of an adapter that learns labels:

    loss = sum over the labels of -log p(label) / number of labels

p is the distribution of the adapted model after the tokens before the label. All labels of a step have equal weight,
whatever rows they belong to, as in `transformers` and peft.
"""

import math
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional
from transformers import AutoModelForCausalLM

from workers.hyperparameters.lora import LoraHyperparameters
from workers.training.figures import Sums, batches_of
from workers.training.loop import BatchLoss
from workers.training.lora.packing import make_batch
from workers.training.lora.rows import LabelledRow
from workers.training.preparation import in_bfloat16

if TYPE_CHECKING:
    from peft import LoraConfig, PeftModel

PRODUCTS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
WEIGHTS_FILE = "adapter_model.safetensors"
_LOGIT_ROWS = 1024  # labels whose logits are in memory at once


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelFigures:
    """Figures of the validation rows. Without such rows, they are None and the latest weights count as best."""

    loss: float | None  # nats per label
    accuracy: float | None  # share of the labels that are the likeliest token

    def is_better_than(self, other: Self) -> bool:
        return self.loss is None or other.loss is None or self.loss < other.loss

    def as_metrics(self) -> dict[str, float]:
        if self.loss is None or self.accuracy is None:
            return {}
        return {"validation_loss": self.loss, "validation_accuracy": self.accuracy}


class LoraMethod:
    def __init__(
        self,
        model_dir: Path,
        parameters: LoraHyperparameters,
        *,
        train: Sequence[LabelledRow],
        validation: Sequence[LabelledRow],
        seed: int,
        device: torch.device,
    ) -> None:
        """Loads the model in float32, with a new adapter on the linear layers of its decoder."""
        from peft import get_peft_model  # imported here, because importing peft takes seconds

        self._parameters, self._train, self._validation = parameters, train, validation
        base = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32, trust_remote_code=False)
        torch.manual_seed(seed)
        self.peft: PeftModel = get_peft_model(base, _config(parameters)).to(device)
        self.module: nn.Module = self.peft
        self._device, self._bfloat16 = device, in_bfloat16(parameters.precision, device)

    @property
    def num_rows(self) -> int:
        return len(self._train)

    def loss(self, rows: Tensor, step: int) -> BatchLoss:
        total, sums = self._sums([self._train[row] for row in rows.tolist()])
        return BatchLoss(total / sums.count, nats=sums.nats, num_tokens=sums.count)

    @torch.no_grad()
    def validate(self) -> LabelFigures:
        if not self._validation:
            return LabelFigures(loss=None, accuracy=None)
        batches = batches_of(len(self._validation), self._parameters.batch_rows)
        all_sums = [self._sums([self._validation[row] for row in batch])[1] for batch in batches]
        whole = sum(all_sums[1:], start=all_sums[0])
        # JSON has no infinity, so a run that has diverged gets a loss that is worse than any other.
        loss = whole.nats / whole.count
        return LabelFigures(loss=loss if math.isfinite(loss) else 1e30, accuracy=whole.correct / whole.count)

    def save(self, folder: Path, *, base_model: str) -> None:
        """Writes the files that peft would write, with the current weights, into an existing folder."""
        from peft import LoraConfig, get_peft_model_state_dict

        tensors = {n: t.detach().cpu().contiguous() for n, t in get_peft_model_state_dict(self.peft).items()}
        save_file(tensors, folder / WEIGHTS_FILE, metadata={"format": "pt"})
        config = copy(self.peft.peft_config["default"])
        assert isinstance(config, LoraConfig)
        config.base_model_name_or_path, config.inference_mode = base_model, True
        config.save_pretrained(str(folder))

    def _sums(self, rows: Sequence[LabelledRow]) -> tuple[Tensor, Sums]:
        """Returns the sum of the labels' cross entropy, which is differentiable, and the sums of the figures."""
        batch = make_batch(rows, packing=self._parameters.packing).to(self._device)
        base = self.peft.get_base_model()
        with torch.autocast(self._device.type, dtype=torch.bfloat16, enabled=self._bfloat16):
            decoder = base.get_decoder()  # type: ignore[operator]
            hidden = decoder(input_ids=batch.tokens, position_ids=batch.positions, use_cache=False).last_hidden_state
            predicting = hidden.flatten(0, 1)[batch.predicting]  # [A, H]
            total, correct = predicting.new_zeros((), dtype=torch.float32), 0
            for rows_of_hidden, labels in zip(
                predicting.split(_LOGIT_ROWS), batch.labels.split(_LOGIT_ROWS), strict=True
            ):
                logits = base.lm_head(rows_of_hidden).float()  # type: ignore[operator]
                total = total + functional.cross_entropy(logits, labels, reduction="sum")
                correct += int((logits.detach().argmax(-1) == labels).sum())
        return total, Sums(float(total.detach()), correct, len(batch.labels))


def _config(parameters: LoraHyperparameters) -> "LoraConfig":
    from peft import LoraConfig

    return LoraConfig(
        r=parameters.rank, lora_alpha=parameters.alpha, target_modules=list(PRODUCTS), task_type="CAUSAL_LM"
    )
