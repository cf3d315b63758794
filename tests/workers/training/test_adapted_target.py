"""A model with an adapter as the target: its answers, the training of a speculator for it, and the evaluation."""

import json
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

from engine.config import EngineConfig
from engine.fingerprint import Fingerprint
from engine.generate import generate
from engine.load import load_engine, load_model
from engine.loop import Engine
from engine.lora.adapted_model import AdaptedModel
from engine.request import Completion, Request, SamplingParams
from tests.workers.support import Recorder, chat_rows, read_lines, token_rows, write_lines
from tests.workers.training.jobs import training_spec
from workers.contracts import BatchSpec, EvaluationSpec, Finished, ShardRange
from workers.failures import UserConfigError
from workers.inference.batch import run_batch
from workers.inference.evaluation import run_evaluation
from workers.inference.loading import read_adapter, use_adapter
from workers.training.job import run_training

# peft uses the attribute `is_gradient_checkpointing`, which transformers has deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")

BUDGET = 15  # drafted tokens per verify pass, in the simulation and when served
FAST = {
    "max_steps": 60,
    "evaluate_every": 20,
    "epochs": 100,
    "learning_rate": 1e-2,
    "patience": 0,
    "draft_budget": BUDGET,
}


@pytest.fixture(scope="module")
def adapter(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the folder of a random adapter, which changes most answers."""
    folder = tmp_path_factory.mktemp("adapter")
    base = AutoModelForCausalLM.from_pretrained(tiny_model)
    peft = get_peft_model(base, LoraConfig(r=4, target_modules=["q_proj", "v_proj", "o_proj", "down_proj"]))
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in peft.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.3, generator=generator)
    peft.save_pretrained(str(folder))
    return folder


def requests() -> list[Request]:
    sampling = SamplingParams(max_tokens=40, temperature=0.0)
    return [Request(str(i), (1, 40 + i % 5, 50, 60 + i % 3, 70 + i), sampling) for i in range(24)]


def engine_with(model: Path, adapter: Path | None, *, drafter: str = "none", speculator: Path | None = None) -> Engine:
    engine = load_engine(model, drafter=drafter, speculator_dir=speculator, config=EngineConfig(draft_budget=BUDGET))
    use_adapter(engine, None if adapter is None else str(adapter))
    return engine


@pytest.fixture(scope="module")
def tokens(tiny_model: Path, adapter: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the file of the adapted model's answers, each of them twice, as in `jobs.write_answers`."""
    asked = requests()
    answers = generate(engine_with(tiny_model, adapter), asked)
    rows = [
        row | {"prompt_token_ids": list(request.prompt_token_ids), "finish_reason": str(answer.finish_reason)}
        for row, request, answer in zip(token_rows([a.token_ids for a in answers]), asked, answers, strict=True)
    ]
    twice = [row | {"custom_id": f"{row['custom_id']}-{copy}"} for copy in range(2) for row in rows]
    return write_lines(tmp_path_factory.mktemp("tokens") / "tokens.jsonl", twice)


def train(folder: Path, model: Path, tokens: Path, adapter: Path, method: str, **parameters: object) -> Finished:
    spec = training_spec(folder, model, tokens, method, FAST | parameters, adapter_dir=str(adapter))
    return run_training(spec, Recorder())


def acceptance_length(answers: list[Completion]) -> float:
    accepted = sum(answer.speculation.num_accepted_draft_tokens for answer in answers)
    return 1.0 + accepted / sum(answer.speculation.num_spec_steps for answer in answers)


@pytest.mark.parametrize("method", ["medusa", "eagle3"])
def test_a_speculator_for_an_adapted_model_accepts_when_served_what_the_simulation_said(
    tmp_path: Path, tiny_model: Path, adapter: Path, tokens: Path, method: str
) -> None:
    parameters = {"batch_rows": 64} if method == "medusa" else {}
    finished = train(tmp_path, tiny_model, tokens, adapter, method, **parameters)
    folder = Path(finished.artifacts["speculator"])
    report = json.loads((folder / "report.json").read_text())
    held_out = {int(identity.split("-")[1]) for identity in report["validation_ids"]}
    asked = [request for number, request in enumerate(requests()) if number in held_out]
    copies = [identity.split("-")[1] for identity in report["validation_ids"]]
    assert len(copies) >= 4
    asked = [replace_id(asked, int(number), position) for position, number in enumerate(copies)]

    served = generate(engine_with(tiny_model, adapter, drafter=method, speculator=folder), asked)

    assert acceptance_length(served) == pytest.approx(report["acceptance_length"], rel=0.01)
    assert report["acceptance_length"] > 1.2  # otherwise a drafter that drafts nothing would pass the comparison
    plain = generate(engine_with(tiny_model, adapter), asked)
    assert [answer.token_ids for answer in served] == [answer.token_ids for answer in plain]
    without = generate(engine_with(tiny_model, None), asked)
    assert [answer.token_ids for answer in without] != [answer.token_ids for answer in plain]
    provenance = json.loads((folder / "provenance.json").read_text())
    assert (
        Fingerprint.parse(provenance["system_fingerprint"]).adapter
        != Fingerprint.parse(str(engine_with(tiny_model, None).fingerprint())).adapter
    )


def replace_id(asked: list[Request], number: int, position: int) -> Request:
    """Returns the request with this number under a new id, because a prompt may be held out twice."""
    (found,) = [request for request in asked if request.request_id == str(number)]
    return Request(f"{number}-{position}", found.prompt_token_ids, found.sampling)


def test_the_hidden_states_of_an_adapted_model_are_those_of_peft(tiny_model: Path, adapter: Path) -> None:
    model = load_model(tiny_model, dtype="float32")
    adapted = AdaptedModel(model, read_adapter(model, str(adapter)))
    ids = torch.tensor([5, 6, 4, 7, 8, 30, 31])

    found = adapted.hidden_states(ids, (1,))

    from peft import PeftModel

    whole = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(tiny_model), adapter)
    with torch.no_grad():
        expected = whole(ids.unsqueeze(0), output_hidden_states=True).hidden_states
    assert found.taps is not None
    torch.testing.assert_close(found.final, expected[-1][0], atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(found.taps[:, 0], expected[1][0], atol=1e-4, rtol=1e-4)
    assert not torch.allclose(found.final, model.hidden_states(ids).final, atol=1e-2)


def test_a_batch_with_an_adapter_gives_the_answers_of_the_adapted_model(
    tmp_path: Path, tiny_model: Path, adapter: Path
) -> None:
    rows = write_lines(tmp_path / "rows.jsonl", chat_rows(4))

    def answers(name: str, folder: Path | None) -> list[list[int]]:
        (tmp_path / name).mkdir()
        spec = BatchSpec(
            job_id="job_1",
            model_dir=str(tiny_model),
            model_name="tiny",
            input_path=str(rows),
            output_dir=str(tmp_path / name),
            shards=(ShardRange(shard_no=0, row_from=0, row_to=4),),
            adapter_dir=None if folder is None else str(folder),
        )
        emit = Recorder()
        run_batch(spec, emit)
        (shard,) = emit.of("shard")
        return [line["completion_token_ids"] for line in read_lines(Path(shard.path))]

    adapted, plain = answers("adapted", adapter), answers("plain", None)
    assert adapted != plain
    engine = engine_with(tiny_model, adapter)
    lines = read_lines(next((tmp_path / "adapted").iterdir()))
    sampling = SamplingParams(max_tokens=24, temperature=0.0)
    asked = [Request(str(n), tuple(line["prompt_token_ids"]), sampling) for n, line in enumerate(lines)]
    assert [list(answer.token_ids) for answer in generate(engine, asked)] == adapted


def test_an_evaluation_with_an_adapter_compares_with_the_adapted_model(
    tmp_path: Path, tiny_model: Path, adapter: Path, tokens: Path
) -> None:
    finished = train(tmp_path, tiny_model, tokens, adapter, "medusa", batch_rows=64, max_steps=20)
    spec = EvaluationSpec(
        job_id="job_1",
        model_dir=str(tiny_model),
        model_name="tiny",
        prompts_path=str(write_lines(tmp_path / "prompts.jsonl", chat_rows(3, max_tokens=12))),
        output_dir=str(tmp_path / "evaluation"),
        checkpoint_dir=str(tmp_path / "measured"),
        drafter="medusa",
        speculator_dir=finished.artifacts["speculator"],
        adapter_dir=str(adapter),
    )

    report = run_evaluation(spec, Recorder()).result

    assert (report["outputs_equal"], report["prompts_held_out"]) == (3, 3)
    assert report["equal_to"] == "model"
    expected = str(engine_with(tiny_model, adapter).fingerprint())
    assert Fingerprint.parse(report["system_fingerprint"]).adapter == Fingerprint.parse(expected).adapter


def test_a_folder_without_an_adapter_and_a_second_adapter_are_refused(
    tmp_path: Path, tiny_model: Path, adapter: Path, tokens: Path
) -> None:
    with pytest.raises(UserConfigError, match="no readable LoRA adapter") as caught:
        train(tmp_path, tiny_model, tokens, tmp_path, "medusa")
    assert caught.value.code == "adapter_not_loadable"
    with pytest.raises(UserConfigError, match="a turbo_lora trains an adapter of its own") as caught:
        train(tmp_path, tiny_model, tokens, adapter, "turbo_lora", batch_rows=2)
    assert caught.value.code == "adapter_not_usable"
