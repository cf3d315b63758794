"""An adapter with heads: its batches, and that everything answers with the adapter."""

from pathlib import Path

import pytest
import torch

from engine.config import EngineConfig
from engine.drafters.none import NoDrafter
from engine.generate import generate
from engine.load import load_engine, load_model
from engine.loop import Engine
from engine.request import Request, SamplingParams
from tests.workers.support import Recorder, chat_rows, write_lines
from workers.contracts import EvaluationSpec
from workers.hyperparameters.medusa import MedusaHyperparameters
from workers.hyperparameters.turbo_lora import TurboLoraHyperparameters
from workers.jobs.evaluation import load_arms, run_evaluation
from workers.training.data import Conversation, Corpus
from workers.training.medusa.model import first_heads
from workers.training.preparation import Preparation
from workers.training.turbo_lora.data import make_batch
from workers.training.turbo_lora.model import AdaptedTarget

# peft asks transformers under a name that transformers is about to drop.
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")


def conversation(prompt: tuple[int, ...], completion: tuple[int, ...]) -> Conversation:
    return Conversation(custom_id="c", prompt_token_ids=prompt, completion_token_ids=completion, cut_by_length=True)


CONVERSATIONS = (conversation((5, 6, 4), (7, 8, 9, 10)), conversation((20,), (21, 22)))


def test_a_batch_holds_whole_answers_and_nothing_after_them() -> None:
    batch = make_batch(CONVERSATIONS, torch.device("cpu"))
    assert batch.tokens.tolist() == [[5, 6, 4, 7, 8, 9], [20, 21, 0, 0, 0, 0]]
    assert batch.tokens.flatten()[batch.places].tolist() == [4, 7, 8, 9, 20, 21]  # what each was chosen after
    assert batch.completions.tolist() == [7, 8, 9, 10, 21, 22]
    assert batch.starts == (0, 4, 6)


@pytest.fixture(scope="module")
def speculator(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An adapter that says something else than the model, and heads that know nothing."""
    folder = tmp_path_factory.mktemp("speculator")
    preparation = Preparation(
        model_dir=tiny_model,
        target=load_model(tiny_model),
        corpus=Corpus(train=CONVERSATIONS, validation=CONVERSATIONS, sha256="", num_skipped=0),
        cache=folder / "cache",
        seed=0,
        emit=Recorder(),
    )
    first_heads(preparation, MedusaHyperparameters()).save(folder, base_model="target")
    adapted = AdaptedTarget(preparation, TurboLoraHyperparameters(rank=4))
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.1, generator=torch.Generator().manual_seed(len(name)))
    adapted.save(folder, base_model="target")
    return folder


def requests(adapter: str | None = None) -> list[Request]:
    sampling = SamplingParams(max_tokens=12, temperature=0.0)
    return [Request(str(i), (40 + i, 50, 60), sampling, adapter) for i in range(4)]


def test_requests_that_name_no_adapter_are_answered_with_it(speculator: Path, tiny_model: Path) -> None:
    engine = load_engine(tiny_model, drafter="turbo_lora", speculator_dir=speculator)
    plain = Engine(load_model(tiny_model), NoDrafter(), EngineConfig())
    plain.adapters.load("named", speculator)
    found = [answer.token_ids for answer in generate(engine, requests())]
    assert found == [answer.token_ids for answer in generate(plain, requests("named"))]
    assert found != [answer.token_ids for answer in generate(plain, requests())]


def test_an_evaluations_plain_arm_is_the_model_with_the_adapter(
    speculator: Path, tiny_model: Path, tmp_path: Path
) -> None:
    spec = EvaluationSpec(
        job_id="job_0123",
        model_dir=str(tiny_model),
        model_name="tiny",
        prompts_path=str(write_lines(tmp_path / "rows.jsonl", chat_rows(3))),
        output_dir=str(tmp_path / "output"),
        drafter="turbo_lora",
        speculator_dir=str(speculator),
        max_tokens=12,
    )
    arms = load_arms(spec)
    plain, drafted = (generate(engine, requests()) for engine in (arms.plain, arms.speculative))
    unadapted = generate(load_engine(tiny_model), requests())
    assert [a.token_ids for a in plain] == [a.token_ids for a in drafted] != [a.token_ids for a in unadapted]
    assert run_evaluation(spec, Recorder()).result["outputs_equal"] == 3


def test_no_path_of_this_machine_is_stored(speculator: Path, tiny_model: Path) -> None:
    assert sorted(path.name for path in speculator.iterdir()) == [
        "adapter_config.json",
        "adapter_model.safetensors",
        "config.json",
        "draft_vocab.safetensors",
        "medusa_lm_head.safetensors",
    ]
    assert str(tiny_model) not in (speculator / "adapter_config.json").read_text()
