"""Tests of the fine-tuning job: the adapter that is served, validation, checkpoints, and a run that is killed."""

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from engine.generate import generate
from engine.load import load_engine
from engine.request import Request, SamplingParams
from engine.tokenizer import Tokenizer
from tests.tiny_model import make_tiny_model
from tests.workers.support import ROOT, Recorder, run_child
from tests.workers.training.lora.spec import fine_tuning_spec, labelled, labelled_rows
from workers.contracts import FineTuningSpec, Finished, write_spec
from workers.failures import UserConfigError
from workers.training.checkpoint import load_newest_checkpoint
from workers.training.lora.job import run_fine_tuning

# peft uses the attribute `is_gradient_checkpointing`, which transformers has deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")

ANSWER = "seven"
FAST: dict[str, Any] = {"rank": 8, "epochs": 12, "batch_rows": 4, "learning_rate": 2e-2, "warmup_steps": 2}


def weights_of(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "adapter_model.safetensors")


def spec_of_one_answer(folder: Path, model: Path) -> FineTuningSpec:
    rows = [labelled(f"What is {n}?", ANSWER) for n in range(12)]
    return fine_tuning_spec(folder, model, rows, validation=rows[:3], **FAST)


@pytest.fixture(scope="module")
def run(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Finished, Recorder]:
    emit = Recorder()
    return run_fine_tuning(spec_of_one_answer(tmp_path_factory.mktemp("run"), tiny_model), emit), emit


def test_the_engine_answers_with_the_label_for_requests_that_name_the_adapter(
    run: tuple[Finished, Recorder], tiny_model: Path
) -> None:
    tokenizer, engine = Tokenizer.load(tiny_model), load_engine(tiny_model)
    engine.adapters.load("mine", Path(run[0].artifacts["adapter"]))
    prompt = tuple(tokenizer.encode_chat([{"role": "user", "content": "What is 70?"}]))
    sampling = SamplingParams(max_tokens=12, temperature=0.0, stop_token_ids=tokenizer.eos_token_ids)
    requests = [Request("plain", prompt, sampling), Request("adapted", prompt, sampling, adapter="mine")]
    plain, adapted = (tokenizer.decode(answer.token_ids) for answer in generate(engine, requests))
    assert adapted == ANSWER
    assert plain != ANSWER


def test_the_result_has_the_losses_and_counts(run: tuple[Finished, Recorder]) -> None:
    finished, emit = run
    result = finished.result
    assert (result["rows_train"], result["rows_validation"], result["rows_cut"]) == (12, 3, 0)
    assert (result["steps"], result["stopped_by"]) == (36, "steps")
    assert result["label_tokens"] == 12 * len(f"{ANSWER}.")  # the end token is one token, as each character is
    assert result["validation_loss"] < 0.1 * result["history"][0]["validation_loss"]
    assert result["validation_accuracy"] == 1.0
    validated = [event.data for event in emit.of("metrics") if "validation_loss" in event.data]
    assert len(validated) == 1 + 12  # before the first step, and after each epoch
    assert all({"loss", "validation_accuracy", "epoch"} <= data.keys() for data in validated[1:])
    json.dumps(result, allow_nan=False)


def test_the_adapter_of_the_result_is_the_one_with_the_lowest_validation_loss(tmp_path: Path, tiny_model: Path) -> None:
    """The validation rows contradict the training rows, so that training makes the validation loss worse."""
    rows = [labelled(f"What is {n}?", ANSWER) for n in range(8)]
    other = [labelled(f"What is {n}?", "0000") for n in range(8)]
    spec = fine_tuning_spec(tmp_path, tiny_model, rows, validation=other, **FAST | {"epochs": 6})
    finished = run_fine_tuning(spec, Recorder())
    losses = {int(entry["step"]): entry["validation_loss"] for entry in finished.result["history"]}
    assert finished.result["best_step"] == min(losses, key=lambda step: losses[step]) < finished.result["steps"]
    assert finished.result["validation_loss"] == min(losses.values())


def test_without_validation_rows_the_last_weights_are_the_result(tmp_path: Path, tiny_model: Path) -> None:
    emit = Recorder()
    finished = run_fine_tuning(fine_tuning_spec(tmp_path, tiny_model, labelled_rows(6), **FAST), emit)
    assert finished.result["validation_loss"] is None
    assert finished.result["best_step"] == finished.result["steps"] == 24  # 12 epochs of 4 and 2 rows
    last = Path(emit.of("checkpoint")[-1].path)
    result = weights_of(Path(finished.artifacts["adapter"]))
    assert all(torch.equal(tensor, result[name]) for name, tensor in weights_of(last).items())


def test_each_checkpoint_has_the_adapter_of_its_step(tmp_path: Path, tiny_model: Path) -> None:
    spec = fine_tuning_spec(tmp_path, tiny_model, labelled_rows(6), **FAST | {"epochs": 2})
    run_fine_tuning(spec, Recorder())
    first, second = sorted(Path(spec.checkpoint_dir).iterdir())
    for folder in (first, second):
        snapshot = load_newest_checkpoint(folder)
        assert snapshot is not None
        saved = weights_of(folder)
        for name, tensor in saved.items():
            trained = snapshot.tensors[f"weights.{name.replace('.weight', '.default.weight')}"]
            assert torch.equal(tensor, trained)
    assert any(
        not torch.equal(a, b) for a, b in zip(weights_of(first).values(), weights_of(second).values(), strict=True)
    )
    assert json.loads((first / "adapter_config.json").read_text())["peft_type"] == "LORA"


@pytest.mark.parametrize(("steps", "first_done"), [(1, 1), (7, 6)])
def test_a_job_killed_at_any_step_continues_to_the_same_bits(
    tmp_path: Path, tiny_model: Path, steps: int, first_done: int
) -> None:
    """`dying_job` kills its own process with SIGKILL. One of the two cases has no checkpoint yet, the other has two.

    first_done: the number of steps in the first progress event of the second run.
    """
    spec = fine_tuning_spec(tmp_path / "a", tiny_model, labelled_rows(10), **FAST | {"epochs": 4})
    expected = weights_of(Path(run_fine_tuning(spec, Recorder()).artifacts["adapter"]))
    killed = replace(spec, output_dir=str(tmp_path / "b" / "output"), checkpoint_dir=str(tmp_path / "b" / "checkpoint"))
    (tmp_path / "b").mkdir()
    write_spec(killed, tmp_path / "spec.json")
    command = [sys.executable, "-m", "tests.workers.training.lora.dying_job", str(tmp_path / "spec.json"), str(steps)]
    child = subprocess.run(command, cwd=ROOT, capture_output=True, timeout=60)
    assert child.returncode == -9, child.stderr
    emit = Recorder()
    found = weights_of(Path(run_fine_tuning(killed, emit).artifacts["adapter"]))
    assert emit.of("progress")[0].done == first_done
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in found)


def test_training_continues_from_a_checkpoint_that_the_supervisor_has_restored(
    tmp_path: Path, tiny_model: Path
) -> None:
    """The supervisor restores the files directly into the checkpoint folder, together with the adapter's files."""
    spec = fine_tuning_spec(tmp_path / "a", tiny_model, labelled_rows(8), **FAST | {"epochs": 4})
    expected = weights_of(Path(run_fine_tuning(spec, Recorder()).artifacts["adapter"]))
    restored = tmp_path / "restored"
    shutil.copytree(min(Path(spec.checkpoint_dir).iterdir()), restored)
    emit = Recorder()
    finished = run_fine_tuning(
        replace(spec, checkpoint_dir=str(restored), output_dir=str(tmp_path / "b" / "output")), emit
    )
    assert emit.of("progress")[0].done == 6
    found = weights_of(Path(finished.artifacts["adapter"]))
    assert all(torch.equal(found[name], expected[name]) for name in found)


@pytest.mark.parametrize(
    ("hyperparameters", "message"),
    [
        ({"ranks": 8}, "got also ranks"),
        ({"rank": 0}, "rank must be in 1..256, got 0"),
        ({"long_rows": "drop"}, "long_rows must be one of refuse, cut"),
        ({"epochs": "3"}, "epochs must be int"),
        ({"learning_rate": 2.0}, "learning_rate must be in"),
    ],
)
def test_bad_hyperparameters_are_named(
    tmp_path: Path, tiny_model: Path, hyperparameters: dict[str, object], message: str
) -> None:
    spec = replace(fine_tuning_spec(tmp_path, tiny_model, labelled_rows(2)), hyperparameters=hyperparameters)
    with pytest.raises(UserConfigError, match=message) as caught:
        run_fine_tuning(spec, Recorder())
    assert caught.value.code == "invalid_hyperparameters"


def test_a_model_without_a_dense_decoder_is_refused(tmp_path: Path) -> None:
    model = make_tiny_model(tmp_path / "model", "gpt_neox")
    with pytest.raises(UserConfigError, match=r"fine-tuning is for models of type llama, .* got 'gpt_neox'"):
        run_fine_tuning(fine_tuning_spec(tmp_path, model, labelled_rows(2)), Recorder())


def test_the_child_process_runs_the_job_and_names_a_bad_line(tmp_path: Path, tiny_model: Path) -> None:
    spec = fine_tuning_spec(tmp_path, tiny_model, [labelled("a", "b"), {"messages": []}])
    status, events, _ = run_child(spec, tmp_path)
    failed = events[-1]
    assert status == 1
    assert (failed.event, failed.failure_class, failed.code) == ("failed", "invalid_input", "missing_messages")  # type: ignore[union-attr]
    assert failed.message.startswith("training_file: line 2: ")  # type: ignore[union-attr]
