"""The member `prediction` of chat completions: the usage counts its tokens, and invalid predictions are refused."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from engine.request import Request
from engine.tokenizer import Tokenizer
from tests.engine.openai.tool_model import make_tool_model
from tests.engine.server.fake_engine import FakeEngine
from tests.engine.server.live import Live, serve

ANSWER = "def f(x): return x + 1"  # one token for each character


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    tokenizer = Tokenizer.load(make_tool_model(tmp_path_factory.mktemp("model")))
    with serve(FakeEngine(lambda _: tokenizer.encode(ANSWER), tokens_per_step=5), tokenizer) as live:
        yield live


@pytest.mark.parametrize(
    ("content", "accepted", "rejected"),
    [
        (ANSWER, len(ANSWER), 0),
        ("def g(x): return x + 1", len(ANSWER) - 1, 1),
        ([{"type": "text", "text": "def f(x):"}, {"type": "text", "text": " return x * 2"}], 19, 3),
        ("zzz", 0, 3),
    ],
)
def test_the_usage_counts_predicted_tokens_that_the_answer_contains_as_accepted(
    live: Live, content: Any, accepted: int, rejected: int
) -> None:
    prediction = {"type": "content", "content": content}

    whole = live.chat(prediction=prediction).json()
    streamed = live.chat(prediction=prediction, stream=True, stream_options={"include_usage": True}).text

    expected = {
        "reasoning_tokens": 0,
        "accepted_prediction_tokens": accepted,
        "rejected_prediction_tokens": rejected,
    }
    assert whole["choices"][0]["message"]["content"] == ANSWER
    assert whole["usage"]["completion_tokens_details"] == expected
    *_, last_chunk, _ = streamed.removesuffix("\n\n").split("\n\n")
    assert json.loads(last_chunk.removeprefix("data: "))["usage"] == whole["usage"]


def test_the_server_passes_the_prediction_of_a_request_to_the_engine(tmp_path_factory: pytest.TempPathFactory) -> None:
    tokenizer = Tokenizer.load(make_tool_model(tmp_path_factory.mktemp("asked")))
    given = []

    def script(request: Request) -> list[int]:
        given.append(request.prediction_token_ids)
        return tokenizer.encode("x")

    with serve(FakeEngine(script), tokenizer) as live:
        assert live.chat(prediction={"type": "content", "content": "def"}, n=2).status_code == 200

    assert set(given) == {tuple(tokenizer.encode("def", add_special_tokens=False))}


def test_accepted_prediction_tokens_of_all_choices_are_added_up(live: Live) -> None:
    usage = live.chat(prediction={"type": "content", "content": "def"}, n=2).json()["usage"]

    assert usage["completion_tokens_details"]["accepted_prediction_tokens"] == 6


def test_the_usage_of_a_request_without_a_prediction_has_no_prediction_counts(live: Live) -> None:
    assert live.chat().json()["usage"]["completion_tokens_details"] == {"reasoning_tokens": 0}


@pytest.mark.parametrize(
    ("prediction", "param"),
    [
        ("text", "prediction"),
        ({"type": "text", "content": "x"}, "prediction.type"),
        ({"type": "content"}, "prediction.content"),
        ({"type": "content", "content": 3}, "prediction.content"),
        ({"type": "content", "content": ["x"]}, "prediction.content[0]"),
        ({"type": "content", "content": [{"type": "image"}]}, "prediction.content[0]"),
        ({"type": "content", "content": [{"type": "text", "text": "x", "weight": 1}]}, "prediction.content[0].weight"),
        ({"type": "content", "content": "x", "weight": 1}, "prediction.weight"),
        ({"type": "content", "content": "x" * 600}, "prediction"),
    ],
)
def test_a_prediction_that_cannot_be_used_is_refused_by_name(live: Live, prediction: Any, param: str) -> None:
    response = live.chat(prediction=prediction)

    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == param
