"""Requests whose tokens the device cannot sample are sampled on the host; all others decode in graph steps.

The two groups do not change each other's tokens, even if requests are preempted, are cancelled or change the group.
"""

import random
from collections.abc import Sequence as Many
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine.cache.kv_cache import KVCache
from engine.config import EngineConfig
from engine.drafters.none import NoDrafter
from engine.generate import generate
from engine.graph_decoding.runner import LaunchedStep, Runner
from engine.load import load_model
from engine.loop import Engine
from engine.lora.stacks import LoraStacks
from engine.models.base import Model
from engine.request import FinishReason, Request
from tests.engine.drafters import random_medusa
from tests.engine.graph_decoding.late_device import LateDevice, install
from tests.engine.graph_decoding.test_decoder import DRAFTERS, graph_engine, is_empty, plain_answers, requests_of
from tests.engine.lora.test_adapters import ALL_MODULES, make_adapter
from tests.engine.test_equality import SAMPLINGS, Sampling, answers_only
from tests.tiny_model import make_tiny_model

# peft uses a deprecated name of transformers.
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")

# Parameters that exclude a request from graph steps. `min_tokens` does so until the answer has that many tokens.
ON_HOST: tuple[dict[str, Any], ...] = (
    {"num_logprobs": 2},
    {"presence_penalty": 0.7, "frequency_penalty": 0.2},
    {"logit_bias": ((70, 4.0), (71, -100.0)), "num_logprobs": 0},
    {"min_tokens": 9},
)
KINDS = ["none", "medusa", "eagle3", "block", "ngram"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model"), num_layers=4)


@pytest.fixture(scope="module")
def model(folder: Path) -> Model:
    return load_model(folder, device="cpu")


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> LateDevice:
    device = LateDevice()
    install(monkeypatch, device)
    return device


class Launches:
    """Records the batch slots of the sequences in each graph step that an engine launches."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.rows: list[list[int]] = []
        launch = Runner.launch

        def recorded(runner: Runner, rows: Many[int], *args: Any, **kwargs: Any) -> LaunchedStep:
            self.rows.append(list(rows))
            return launch(runner, rows, *args, **kwargs)

        monkeypatch.setattr(Runner, "launch", recorded)


def mixed_requests(model: Model, sampling: Sampling, *, count: int, max_tokens: int = 24) -> list[Request]:
    """Makes requests. Every second request has parameters from `ON_HOST`."""
    requests = requests_of(model, sampling, count=count, max_tokens=max_tokens)
    for index in range(0, count, 2):
        changed = replace(requests[index].sampling, **ON_HOST[index // 2 % len(ON_HOST)])
        requests[index] = replace(requests[index], sampling=changed)
    return requests


@pytest.mark.parametrize("change", ON_HOST[:3])
def test_other_requests_stay_in_graph_steps_while_one_request_is_sampled_on_the_host(
    model: Model, device: LateDevice, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any]
) -> None:
    requests = requests_of(model, {"temperature": 0.8, "ignore_eos": True}, count=4, max_tokens=20)
    requests[0] = replace(requests[0], sampling=replace(requests[0].sampling, max_tokens=60, **change))
    plain = plain_answers(model, requests)
    launches = Launches(monkeypatch)
    engine = graph_engine(model, NoDrafter(), max_batch_size=4)
    for request in requests:
        engine.add(request)
    engine.step()
    row_on_host = engine.scheduler.running["r0"].table_row
    tokens = {request.request_id: 1 for request in requests}
    while "r1" in engine.scheduler.running:
        for output in engine.step():
            tokens[output.request_id] += len(output.token_ids)
    assert len(launches.rows) == 19  # one token of 20 comes from prefill
    assert all(len(rows) == 3 and row_on_host not in rows for rows in launches.rows)
    assert tokens == {"r0": tokens["r0"], "r1": 20, "r2": 20, "r3": 20}
    assert 20 <= tokens["r0"] < 60
    while engine.has_work:
        engine.step()
    engine = graph_engine(model, NoDrafter(), max_batch_size=4)
    assert answers_only(generate(engine, requests)) == plain


def test_a_request_enters_graph_steps_once_its_answer_has_min_tokens(
    model: Model, device: LateDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    (request,) = requests_of(model, {"temperature": 0.8, "ignore_eos": True}, count=1, max_tokens=30)
    request = replace(request, sampling=replace(request.sampling, min_tokens=10))
    launches = Launches(monkeypatch)
    assert answers_only(generate(graph_engine(model, NoDrafter()), [request])) == plain_answers(model, [request])
    assert len(launches.rows) == 20


@pytest.mark.parametrize("sampling", ["greedy", "top-p"])
@pytest.mark.parametrize("kind", KINDS)
def test_preemption_and_shared_prefixes_do_not_change_the_answers_of_either_group(
    model: Model, device: LateDevice, kind: str, sampling: str
) -> None:
    common = tuple(random.Random(5).randrange(model.config.vocab_size) for _ in range(37))
    requests = [
        replace(request, prompt_token_ids=common[: 12 * (index % 4)] + request.prompt_token_ids)
        for index, request in enumerate(mixed_requests(model, SAMPLINGS[sampling], count=8))
    ]
    plain = plain_answers(model, requests)
    drafter = DRAFTERS[kind](model)
    cache_bytes = 130 * (KVCache.slot_bytes(model.config, model.dtype) + drafter.slot_bytes)  # too few slots for all
    engine = graph_engine(model, drafter, max_batch_size=8, kv_cache_bytes=cache_bytes, draft_budget=5)
    for order in (requests, requests[::-1]):
        found = answers_only(generate(engine, order))
        assert sorted(found, key=lambda answer: str(answer[0])) == plain
    assert engine.counters.num_preemptions > 0
    assert engine.counters.prefix_hits > 0
    assert is_empty(engine)


@pytest.mark.parametrize("seed", range(4))
def test_arrivals_cancellations_and_new_drafters_do_not_change_the_answers_of_either_group(
    model: Model, device: LateDevice, seed: int
) -> None:
    requests = mixed_requests(model, SAMPLINGS["T=0.8"], count=12, max_tokens=30)
    plain = {str(answer[0]): answer[1:] for answer in plain_answers(model, requests)}
    generator = random.Random(seed)
    waiting = generator.sample(requests, len(requests))
    slots = generator.choice([150, 1000])
    cache_bytes = slots * KVCache.slot_bytes(model.config, model.dtype)
    engine = graph_engine(model, NoDrafter(), max_batch_size=5, kv_cache_bytes=cache_bytes, draft_budget=7)
    tokens: dict[str, list[int]] = {name: [] for name in plain}
    logprobs: dict[str, list[object]] = {name: [] for name in plain}
    reasons: dict[str, FinishReason] = {}
    while waiting or engine.has_work:
        if waiting and generator.random() < 0.4:
            engine.add(waiting.pop())
        if engine.scheduler.running and generator.random() < 0.04:
            engine.cancel(generator.choice(list(engine.scheduler.running)))
        if generator.random() < 0.05:
            engine.swap_drafter(DRAFTERS[generator.choice(["none", "medusa", "ngram"])](model))
        for output in engine.step():
            tokens[output.request_id] += output.token_ids
            logprobs[output.request_id] += output.logprobs or ()
            if output.finish_reason:
                assert output.request_id not in reasons
                reasons[output.request_id] = output.finish_reason
    assert reasons.keys() == plain.keys()
    assert len(set(reasons.values())) > 1
    for name, (expected, expected_logprobs, reason) in plain.items():
        count = len(tokens[name])
        assert tuple(tokens[name]) == expected[:count]  # type: ignore[index]
        assert tuple(logprobs[name]) == (expected_logprobs or ())[: len(logprobs[name])]  # type: ignore[index]
        assert reasons[name] is FinishReason.CANCELLED or (count, reasons[name]) == (len(expected), reason)  # type: ignore[arg-type]
    assert is_empty(engine)


def test_adapters_of_both_groups_do_not_change_an_answer(
    folder: Path, device: LateDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on CUDA, stacks hold the adapters. A request on the host makes the engine rebuild the stacks.

    Log-probabilities are not compared, because products without the compiled kernels are not row-invariant.
    """
    for module in ("linear", "norm", "swiglu", "rope", "attention", "decoder"):
        monkeypatch.setattr(f"kernels.{module}.library", lambda: None)
    adapters = {
        "all": make_adapter(folder, tmp_path / "all", ALL_MODULES, rank=4),
        "few": make_adapter(folder, tmp_path / "few", ["q_proj", "v_proj"], rank=5, seed=1),
    }
    model = load_model(folder, device="cpu")
    requests = mixed_requests(model, {"temperature": 0.0, "ignore_eos": True}, count=6, max_tokens=8)
    names = ("few", None, None, "all", "all", "few")
    requests = [replace(request, adapter=name) for request, name in zip(requests, names, strict=True)]

    def make_engine(graph_decoding: Any) -> Engine:
        config = EngineConfig(max_batch_size=3, graph_decoding=graph_decoding, draft_budget=3)
        engine = Engine(model, random_medusa(model), config)
        for name, path in adapters.items():
            engine.adapters.load(name, path)
        return engine

    expected = [completion.token_ids for completion in generate(make_engine("off"), requests)]
    monkeypatch.setattr("engine.loop.stacks_for", LoraStacks)
    launches = Launches(monkeypatch)
    engine = make_engine("on")
    assert [completion.token_ids for completion in generate(engine, requests)] == expected
    assert launches.rows
    assert is_empty(engine)
