"""In graph decoding, predictions change no answer, and they save graph steps if the drafter runs on the host."""

from collections.abc import Sequence as Many
from dataclasses import replace
from typing import Any

import pytest

from engine.drafters.ngram import NgramDrafter
from engine.generate import generate
from engine.graph_decoding.runner import LaunchedStep, Runner
from engine.load import load_model
from engine.models.base import Model
from tests.engine.graph_decoding.late_device import LateDevice, install
from tests.engine.graph_decoding.test_decoder import DRAFTERS, graph_engine, plain_answers, requests_of
from tests.engine.test_equality import SAMPLINGS, answers_only
from tests.tiny_model import make_tiny_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return load_model(make_tiny_model(tmp_path_factory.mktemp("model"), num_layers=4), device="cpu")


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> LateDevice:
    device = LateDevice()
    install(monkeypatch, device)
    return device


@pytest.mark.parametrize("budget", [None, 3, 0])
@pytest.mark.parametrize("kind", ["none", "medusa", "ngram", "broken"])
def test_predictions_change_no_answer(model: Model, device: LateDevice, kind: str, budget: int | None) -> None:
    requests = requests_of(model, SAMPLINGS["T=0.8"], count=6, max_tokens=20)
    plain = plain_answers(model, requests)
    answers = [completion.token_ids for completion in generate(graph_engine(model, NgramDrafter()), requests)]
    edited = [answers[0], (*answers[1][:9], 5, *answers[1][12:]), answers[0], (), answers[4], (3,) * 30]
    predicted = [replace(r, prediction_token_ids=tokens) for r, tokens in zip(requests, edited, strict=True)]
    options: dict[str, Any] = {} if budget is None else {"draft_budget": budget}

    engine = graph_engine(model, DRAFTERS[kind](model), max_batch_size=4, **options)

    assert answers_only(generate(engine, predicted)) == plain


def test_an_exact_prediction_saves_graph_steps_with_a_drafter_on_the_host(
    model: Model, device: LateDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    (request,) = requests_of(model, SAMPLINGS["T=0.8"] | {"ignore_eos": True}, count=1, max_tokens=60)
    (plain,) = generate(graph_engine(model, NgramDrafter(), draft_budget=15), [request])
    launches = []
    launch = Runner.launch

    def recorded(runner: Runner, rows: Many[int], *args: Any, **kwargs: Any) -> LaunchedStep:
        launches.append(len(rows))
        return launch(runner, rows, *args, **kwargs)

    monkeypatch.setattr(Runner, "launch", recorded)
    predicted = replace(request, prediction_token_ids=plain.token_ids)

    (answer,) = generate(graph_engine(model, NgramDrafter(), draft_budget=15), [predicted])

    assert answer.token_ids == plain.token_ids
    assert len(launches) <= 8, "drafted chains have 4, 5, 10 and then 15 tokens"
