"""Compares fine-tuning with a plain training loop of peft and transformers on the same rows."""

from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

from engine.tokenizer import Tokenizer
from tests.workers.support import Recorder
from tests.workers.training.lora.spec import fine_tuning_spec, labelled, labelled_rows
from workers.training.loop import RowOrder, learning_rate_factor
from workers.training.lora.job import run_fine_tuning
from workers.training.lora.labels import PRODUCTS
from workers.training.lora.packing import make_batch
from workers.training.lora.rows import read_labelled_rows

# peft uses the attribute `is_gradient_checkpointing`, which transformers has deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")

STEPS, BATCH_ROWS, RATE = 8, 4, 5e-3


def losses_of_peft(model: Path, rows_path: Path) -> list[float]:
    """Trains as a user of peft would: padded rows with an attention mask, and labels of -100 in the prompts.

    transformers computes the loss. The order of the rows and the learning rate are those of our loop.
    """
    tokenizer = Tokenizer.load(model)
    rows = read_labelled_rows(rows_path, tokenizer, name="rows", max_tokens=512, long_rows="refuse").rows
    base = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    torch.manual_seed(0)
    config = LoraConfig(r=4, lora_alpha=32, target_modules=list(PRODUCTS), task_type="CAUSAL_LM")
    adapted = get_peft_model(base, config)
    adapted.train()
    trained = [parameter for parameter in adapted.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=RATE, betas=(0.9, 0.95), weight_decay=0.0)
    order, losses = RowOrder(len(rows), BATCH_ROWS, seed=0, drop_last=False), []
    for step in range(STEPS):
        chosen = [rows[row] for row in order.batch(step).tolist()]
        length = max(len(row.tokens) for row in chosen)
        ids, mask = torch.zeros(len(chosen), length, dtype=torch.int64), torch.zeros(len(chosen), length)
        labels = torch.full((len(chosen), length), -100)
        for index, row in enumerate(chosen):
            ids[index, : len(row.tokens)] = torch.tensor(row.tokens)
            mask[index, : len(row.tokens)] = 1
            labels[index, row.num_prompt : len(row.tokens)] = torch.tensor(row.tokens[row.num_prompt :])
        loss = adapted(input_ids=ids, attention_mask=mask, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.param_groups[0]["lr"] = RATE * learning_rate_factor(step, step / STEPS, 2)
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("packing", [False, True])
def test_the_losses_of_several_steps_are_those_of_peft(tmp_path: Path, tiny_model: Path, packing: bool) -> None:
    long_rows = [labelled("y" * (70 + 9 * n), f"long {n}") for n in range(6)]  # beside which short rows are packed
    spec = fine_tuning_spec(
        tmp_path, tiny_model, [*labelled_rows(12), *long_rows], rank=4, max_steps=STEPS, epochs=5,
        batch_rows=BATCH_ROWS, learning_rate=RATE, warmup_steps=2, evaluate_every=1, packing=packing,
    )  # fmt: skip
    emit = Recorder()
    run_fine_tuning(spec, emit)
    found = [event.data["loss"] for event in emit.of("metrics") if "loss" in event.data]
    expected = losses_of_peft(tiny_model, Path(spec.rows_path))
    assert found == pytest.approx(expected, abs=1e-3)
    assert expected[-1] < expected[0] - 0.3  # the weights change, so the optimizers are compared, too


def test_packing_fills_sequences_and_keeps_every_label(tmp_path: Path, tiny_model: Path) -> None:
    spec = fine_tuning_spec(tmp_path, tiny_model, [*labelled_rows(9), labelled("x" * 150, "y")])
    rows = read_labelled_rows(
        Path(spec.rows_path), Tokenizer.load(tiny_model), name="rows", max_tokens=512, long_rows="refuse"
    ).rows
    packed, apart = make_batch(rows, packing=True), make_batch(rows, packing=False)
    assert packed.tokens.shape[0] < apart.tokens.shape[0] == len(rows)
    assert packed.tokens.shape[1] == apart.tokens.shape[1]
    for batch in (packed, apart):
        flat = batch.tokens.flatten()
        assert torch.equal(flat[batch.predicting + 1], batch.labels)
        assert len(batch.labels) == sum(row.num_labels for row in rows)
    assert sorted(packed.labels.tolist()) == sorted(apart.labels.tolist())
