"""Tests of training with a small draft vocabulary, which lacks many tokens of the prompts."""

import json
from pathlib import Path

import pytest
from safetensors.torch import load_file

from engine.config import EngineConfig
from engine.drafters.medusa_heads import VOCAB_FILE
from engine.generate import generate
from engine.load import load_engine
from engine.request import Request, SamplingParams
from tests.workers.support import Recorder
from tests.workers.training.jobs import training_spec, write_answers
from workers.hyperparameters.loop import LoopParameters
from workers.training.job import run_training

COMMON = {"max_steps": 12, "patience": 0, "validation_fraction": 0.25, "draft_vocab_size": 24, "learning_rate": 1e-2}


def requests(model: Path) -> list[Request]:
    """Returns prompts that contain the tokens of the answers to other prompts."""
    sampling = SamplingParams(max_tokens=24, temperature=0.0, ignore_eos=True)
    first = [Request(str(n), (1, 40 + n % 5, 70 + n), sampling) for n in range(16)]
    answers = generate(load_engine(model), first)
    return [
        Request(r.request_id, (*r.prompt_token_ids, *answer.token_ids), sampling)
        for r, answer in zip(first, answers, strict=True)
    ]


def trained(folder: Path, model: Path, tokens: Path, kind: str, **hyperparameters: object) -> Path:
    spec = training_spec(folder, model, tokens, kind, {**COMMON, **hyperparameters})
    return Path(run_training(spec, Recorder()).artifacts["speculator"])


@pytest.mark.parametrize("kind", ["medusa", "eagle3"])
def test_with_prompt_tokens_the_served_acceptance_equals_the_simulated_acceptance(
    tmp_path: Path, tiny_model: Path, kind: str
) -> None:
    asked = requests(tiny_model)
    tokens = write_answers(tmp_path / "tokens.jsonl", tiny_model, asked)
    folder = trained(tmp_path / "with", tiny_model, tokens, kind, prompt_tokens=True)
    report = json.loads((folder / "report.json").read_text())
    names = report["validation_ids"]
    held_out = [r for r in asked for name in names if name.startswith(f"row-{r.request_id}-")]
    repeated = [Request(str(n), r.prompt_token_ids, r.sampling) for n, r in enumerate(held_out)]
    engine = load_engine(
        tiny_model, drafter=kind, speculator_dir=folder, config=EngineConfig(draft_budget=LoopParameters().draft_budget)
    )
    served = [answer.speculation for answer in generate(engine, repeated)]
    accepted, passes = (sum(s.num_accepted_draft_tokens for s in served), sum(s.num_spec_steps for s in served))
    assert 1.0 + accepted / passes == pytest.approx(report["acceptance_length"], rel=0.01)

    without = trained(tmp_path / "without", tiny_model, tokens, kind, prompt_tokens=False)  # gives the same weights
    stored = json.loads((without / "report.json").read_text())["acceptance_length"]
    assert report["acceptance_length"] > 1.03 * stored


def test_a_filled_draft_vocabulary_has_the_tokens_of_the_answers_the_prompts_and_likely_tokens(
    tmp_path: Path, tiny_model: Path
) -> None:
    asked = requests(tiny_model)
    tokens = write_answers(tmp_path / "tokens.jsonl", tiny_model, asked)
    sizes = {"draft_vocab_size": 200, "max_steps": 1}
    few, many = (
        set(load_file(folder / VOCAB_FILE)["draft_vocab"].tolist())
        for fill in (False, True)
        for folder in [trained(tmp_path / str(fill), tiny_model, tokens, "medusa", draft_vocab_fill=fill, **sizes)]
    )
    names = json.loads((tmp_path / "True/output/speculator/report.json").read_text())["validation_ids"]
    training = [r for r in asked if not any(name.startswith(f"row-{r.request_id}-") for name in names)]
    prompts = {token for r in training for token in r.prompt_token_ids}
    assert len(few) < len(many) == 200
    assert few | prompts < many
