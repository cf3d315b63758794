"""On CUDA the engine gives the same answers as transformers, for any draft and batch size, with and without graphs."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from engine.config import EngineConfig
from engine.drafters.base import Drafter
from engine.drafters.none import NoDrafter
from engine.generate import generate
from engine.load import load_model
from engine.loop import Engine
from engine.models.base import Model
from engine.request import Request, SamplingParams
from tests.engine.drafters import OracleDrafter
from tests.engine.graph_decoding.test_decoder import ON_DEVICE
from tests.tiny_model import make_tiny_model

GREEDY = SamplingParams(max_tokens=40, temperature=0.0, ignore_eos=True)
SAMPLED = SamplingParams(max_tokens=40, temperature=0.9, seed=7, ignore_eos=True)


def prompts(count: int) -> list[tuple[int, ...]]:
    generator = torch.Generator().manual_seed(1)
    lengths = [
        9 + 41 * number for number in range(count)
    ]  # below and above the attention kernel's block sizes, 64 and 128
    return [tuple(torch.randint(3, 250, (length,), generator=generator).tolist()) for length in lengths]


def answers(
    model: Model,
    sampling: SamplingParams,
    drafter: Drafter | None = None,
    *,
    batch: int = 4,
    graph_decoding: str = "auto",
) -> dict[str, tuple[int, ...]]:
    config = EngineConfig(max_batch_size=batch, max_seq_len=512, draft_budget=8, graph_decoding=graph_decoding)
    engine = Engine(model, drafter or NoDrafter(), config)
    requests = [Request(str(number), prompt, sampling) for number, prompt in enumerate(prompts(5))]
    return {completion.request_id: completion.token_ids for completion in generate(engine, requests)}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    folder = make_tiny_model(tmp_path_factory.mktemp("model"), num_layers=4, dtype=torch.bfloat16)
    return load_model(folder, dtype="bfloat16", device="cuda")


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
def test_greedy_answers_equal_those_of_transformers(tmp_path: Path, architecture: str) -> None:
    folder = make_tiny_model(tmp_path, architecture)
    reference: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    reference.to("cuda")
    actual = answers(load_model(folder, dtype="float32", device="cuda"), GREEDY)
    for number, prompt in enumerate(prompts(5)):
        ids = torch.tensor([prompt], device="cuda")
        mask = torch.ones_like(ids)
        expected = reference.generate(ids, attention_mask=mask, max_new_tokens=40, min_new_tokens=40, do_sample=False)
        assert actual[str(number)] == tuple(expected[0, len(prompt) :].tolist())


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_answers_with_and_without_graphs_are_equal(
    model: Model, sampling: SamplingParams, caplog: pytest.LogCaptureFixture
) -> None:
    without_graphs = answers(model, sampling, graph_decoding="off")
    assert answers(model, sampling, graph_decoding="on") == without_graphs
    assert "can't be captured" not in caplog.text


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("kind", ON_DEVICE)
def test_drafters_inside_captured_graphs_change_no_answer(
    model: Model, kind: str, sampling: SamplingParams, caplog: pytest.LogCaptureFixture
) -> None:
    plain = answers(model, sampling, graph_decoding="off")
    assert answers(model, sampling, ON_DEVICE[kind](model), graph_decoding="on") == plain
    assert "can't be captured" not in caplog.text


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("tree", [False, True], ids=["chain", "tree"])
@pytest.mark.parametrize("batch", [1, 3, 5])
def test_answers_with_any_draft_and_batch_size_equal_plain_decoding(
    model: Model, sampling: SamplingParams, tree: bool, batch: int
) -> None:
    plain = answers(model, sampling, batch=2, graph_decoding="off")
    size = model.config.vocab_size
    drafter = OracleDrafter(plain, max_depth=6, error=0.3, tree=tree, vocab_size=size)
    assert answers(model, sampling, drafter, batch=batch) == plain


def test_a_graph_step_is_timed_for_any_context_and_number_of_nodes(model: Model) -> None:
    engine = Engine(model, NoDrafter(), EngineConfig(max_batch_size=1, max_seq_len=512, draft_budget=8))
    for nodes, context in ((0, 16), (0, 300), (8, 16)):
        times = engine.time_graph_step(1, nodes, context=context, repeats=3)
        assert times.verify_seconds > 0.0
        assert times.draft_seconds >= 0.0
