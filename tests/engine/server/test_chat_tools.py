"""Tool calls in whole and streamed responses of the server, with a fake engine."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from engine.tokenizer import Tokenizer
from tests.engine.openai.tool_model import answer_with_call, make_tool_model, tool
from tests.engine.server.fake_engine import FakeEngine
from tests.engine.server.live import Live, serve
from tests.engine.server.test_app import events

ANSWER = f"Let me look.\n{answer_with_call({'city': 'Zürich'})}\n{answer_with_call({'city': 'Bern'})}"


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.load(make_tool_model(tmp_path_factory.mktemp("model")))


@pytest.fixture(scope="module")
def live(tokenizer: Tokenizer) -> Iterator[Live]:
    engine = FakeEngine(lambda _: tokenizer.encode(ANSWER), tokens_per_step=7)
    engine.max_prompt = 2000
    with serve(engine, tokenizer) as live:
        yield live


OPTIONS: dict[str, Any] = {"tools": [tool("get_weather")], "seed": 1}


def test_tool_calls_are_separated_from_the_text(live: Live) -> None:
    choice = live.chat(**OPTIONS).json()["choices"][0]

    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] == "Let me look."
    first, second = choice["message"]["tool_calls"]
    assert (first["type"], first["function"]["name"]) == ("function", "get_weather")
    assert json.loads(first["function"]["arguments"]) == {"city": "Zürich"}
    assert json.loads(second["function"]["arguments"]) == {"city": "Bern"}
    assert first["id"] != second["id"]


def test_with_tool_choice_none_calls_remain_text(live: Live) -> None:
    choice = live.chat(**OPTIONS, tool_choice="none").json()["choices"][0]

    assert (choice["finish_reason"], choice["message"]["content"]) == ("stop", ANSWER)
    assert "tool_calls" not in choice["message"]


def test_a_stream_contains_the_name_and_arguments_of_each_call(live: Live) -> None:
    *chunks, done = events(live.chat(**OPTIONS, stream=True))

    choices = [chunk["choices"][0] for chunk in chunks]
    pieces = [call for choice in choices for call in choice["delta"].get("tool_calls", [])]
    first_pieces = [piece for piece in pieces if "id" in piece]
    assert done == "[DONE]"
    assert "".join(choice["delta"].get("content") or "" for choice in choices) == "Let me look."
    assert [(piece["index"], piece["function"]["name"]) for piece in first_pieces] == [
        (0, "get_weather"),
        (1, "get_weather"),
    ]
    arguments = [
        "".join(piece["function"]["arguments"] for piece in pieces if piece["index"] == index) for index in (0, 1)
    ]
    assert [json.loads(text) for text in arguments] == [{"city": "Zürich"}, {"city": "Bern"}]
    assert choices[-1] == {"index": 0, "delta": {}, "logprobs": None, "finish_reason": "tool_calls"}


def test_streamed_log_probabilities_include_the_tokens_of_calls(live: Live) -> None:
    whole = live.chat(**OPTIONS, logprobs=True).json()["choices"][0]["logprobs"]["content"]

    chunks = events(live.chat(**OPTIONS, logprobs=True, stream=True))[:-1]

    streamed = [entry for chunk in chunks for entry in (chunk["choices"][0]["logprobs"] or {"content": []})["content"]]
    assert streamed == whole
    assert bytes(byte for entry in whole for byte in entry["bytes"]).decode() == ANSWER


def test_an_answer_cut_off_within_a_call_has_finish_reason_length(live: Live) -> None:
    num_tokens = len("Let me look.\n<tool_call>\n") + len('{"name": "get_weather", "arguments": {"ci')

    choice = live.chat(**OPTIONS, max_tokens=num_tokens).json()["choices"][0]

    assert choice["finish_reason"] == "length"
    assert [call["function"]["arguments"] for call in choice["message"]["tool_calls"]] == ['{"ci']
