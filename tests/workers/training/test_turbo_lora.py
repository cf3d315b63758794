"""Tests of training Turbo LoRA, which is an adapter together with Medusa heads, and of serving it."""

import json
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

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
from workers.inference.evaluation import load_arms, run_evaluation
from workers.training.data import Conversation, Corpus
from workers.training.hidden_states import compute_tap_rows
from workers.training.medusa.model import initial_heads
from workers.training.preparation import Preparation
from workers.training.turbo_lora.data import make_batch
from workers.training.turbo_lora.model import AdaptedLayers

# peft uses the attribute `is_gradient_checkpointing`, which transformers has deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")


def conversation(prompt: tuple[int, ...], completion: tuple[int, ...]) -> Conversation:
    return Conversation(custom_id="c", prompt_token_ids=prompt, completion_token_ids=completion, cut_by_length=True)


CONVERSATIONS = (conversation((5, 6, 4), (7, 8, 9, 10)), conversation((20,), (21, 22)))


def test_a_batch_has_whole_answers_and_is_padded_with_zeros(tiny_model: Path) -> None:
    rows = compute_tap_rows(load_model(tiny_model), CONVERSATIONS, tap_layers=(1,), file=None)
    batch = make_batch(rows, [0, 1])
    assert torch.equal(batch.layer_inputs[1, :2], rows.taps[6:, 0])
    assert not batch.layer_inputs[1, 2:].any()
    assert batch.flat_index.tolist() == [2, 3, 4, 5, 6, 7]
    assert batch.completions.tolist() == [7, 8, 9, 10, 21, 22]
    assert batch.starts == (0, 4, 6)


@pytest.fixture(scope="module")
def speculator(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a folder with new heads and a random adapter, which changes the model's answers."""
    folder = tmp_path_factory.mktemp("speculator")
    initial_heads(preparation(tiny_model), MedusaHyperparameters()).save(folder, base_model="target")
    adapted = AdaptedLayers(preparation(tiny_model), TurboLoraHyperparameters(rank=4))
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.1, generator=torch.Generator().manual_seed(len(name)))
    adapted.save(folder, base_model="target")
    return folder


def preparation(model: Path, initial: Path | None = None) -> Preparation:
    return Preparation(
        model_dir=model,
        target=load_model(model, dtype="float32"),
        corpus=Corpus(train=CONVERSATIONS, validation=CONVERSATIONS, sha256="", num_skipped=0),
        cache=model / "cache",
        seed=0,
        emit=Recorder(),
        initial=initial,
    )


def test_the_adapted_layers_give_the_output_of_the_whole_adapted_model(speculator: Path, tiny_model: Path) -> None:
    """`AdaptedLayers` holds only the last layers. Its input is the output of the layers before them.

    The expected values come from the whole model, which peft runs with the adapter.
    """
    target = load_model(tiny_model, dtype="float32")
    tokens = torch.tensor([5, 6, 4, 7, 8])
    whole = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(tiny_model), speculator)
    adapted = AdaptedLayers(preparation(tiny_model, speculator), TurboLoraHyperparameters())
    layer_inputs = target.hidden_states(tokens, (adapted.first,)).taps
    assert layer_inputs is not None
    with torch.no_grad():
        expected = whole.get_base_model().get_decoder()(tokens.unsqueeze(0)).last_hidden_state  # type: ignore[operator]
        found = adapted(layer_inputs.transpose(0, 1))
    assert adapted.first == 1
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    assert not torch.allclose(found[0], target.hidden_states(tokens).final, atol=0.1)  # the adapter has an effect


def requests(adapter: str | None = None) -> list[Request]:
    sampling = SamplingParams(max_tokens=12, temperature=0.0)
    return [Request(str(i), (40 + i, 50, 60), sampling, adapter) for i in range(4)]


def test_the_adapter_of_a_speculator_applies_to_requests_that_name_no_adapter(
    speculator: Path, tiny_model: Path
) -> None:
    engine = load_engine(tiny_model, drafter="turbo_lora", speculator_dir=speculator)
    plain = Engine(load_model(tiny_model), NoDrafter(), EngineConfig())
    plain.adapters.load("named", speculator)
    found = [answer.token_ids for answer in generate(engine, requests())]
    assert found == [answer.token_ids for answer in generate(plain, requests("named"))]
    assert found != [answer.token_ids for answer in generate(plain, requests())]


def test_the_plain_arm_of_an_evaluation_uses_the_adapter(speculator: Path, tiny_model: Path, tmp_path: Path) -> None:
    spec = EvaluationSpec(
        job_id="job_0123",
        model_dir=str(tiny_model),
        model_name="tiny",
        prompts_path=str(write_lines(tmp_path / "rows.jsonl", chat_rows(3))),
        output_dir=str(tmp_path / "output"),
        checkpoint_dir=str(tmp_path / "checkpoint"),
        drafter="turbo_lora",
        speculator_dir=str(speculator),
        max_tokens=12,
    )
    arms = load_arms(spec)
    plain, drafted = (generate(engine, requests()) for engine in (arms.plain, arms.speculative))
    unadapted = generate(load_engine(tiny_model), requests())
    assert [a.token_ids for a in plain] == [a.token_ids for a in drafted] != [a.token_ids for a in unadapted]
    finished = run_evaluation(spec, Recorder())

    report = finished.result
    assert (report["equal_to"], report["outputs_equal"]) == ("model_and_adapter", 3)
    assert report["outputs_equal_to_model"] < 3
    assert 0.0 <= report["tokens_equal_to_model"] < 1.0
    found = json.loads(Path(finished.artifacts["evidence"]).read_text())
    assert (found["result"], found["equal_to"]) == ("equal_with_adapter", "model_and_adapter")
    assert found["counts"]["equal_to_model"] == report["outputs_equal_to_model"]


def test_the_files_of_a_speculator_contain_no_local_path(speculator: Path, tiny_model: Path) -> None:
    assert sorted(path.name for path in speculator.iterdir()) == [
        "adapter_config.json",
        "adapter_model.safetensors",
        "config.json",
        "draft_vocab.safetensors",
        "medusa_lm_head.safetensors",
    ]
    assert str(tiny_model) not in (speculator / "adapter_config.json").read_text()
