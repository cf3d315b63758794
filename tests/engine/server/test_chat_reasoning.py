"""Reasoning traces in whole and streamed chat completions of the server, with a fake engine."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from engine.tokenizer import Tokenizer
from tests.engine.openai.thinking_model import BEGIN, END, make_thinking_model
from tests.engine.openai.tool_model import answer_with_call, tool
from tests.engine.server.fake_engine import FakeEngine
from tests.engine.server.live import Live, serve
from tests.engine.server.test_app import events

TRACE = f"Let me see. {answer_with_call({'city': 'Paris'})}"
ANSWER = f"Here: {answer_with_call({'city': 'Bern'})}"


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.load(make_thinking_model(tmp_path_factory.mktemp("model")))


@pytest.fixture(scope="module")
def live(tokenizer: Tokenizer) -> Iterator[Live]:
    answer = [BEGIN, *tokenizer.encode(TRACE), END, *tokenizer.encode(ANSWER)]
    engine = FakeEngine(lambda _: answer, tokens_per_step=7)
    engine.max_prompt = 2000
    with serve(engine, tokenizer) as live:
        yield live


def test_a_response_has_the_reasoning_trace_and_its_token_count_apart_from_the_content(live: Live) -> None:
    body = live.chat().json()

    message = body["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == (TRACE, ANSWER)
    assert body["usage"]["completion_tokens"] == len(TRACE.encode()) + 2 + len(ANSWER.encode()) + 1
    assert body["usage"]["completion_tokens_details"] == {"reasoning_tokens": len(TRACE.encode()) + 2}


def test_a_stream_sends_the_reasoning_trace_before_the_content(live: Live) -> None:
    *chunks, usage, _ = events(live.chat(stream=True, stream_options={"include_usage": True}))

    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert "".join(delta.get("reasoning_content", "") for delta in deltas) == TRACE
    assert "".join(delta.get("content", "") for delta in deltas) == ANSWER
    kinds = ["reasoning_content" in delta for delta in deltas if delta.get("content") or "reasoning_content" in delta]
    assert kinds == sorted(kinds, reverse=True)
    assert usage["usage"]["completion_tokens_details"] == {"reasoning_tokens": len(TRACE.encode()) + 2}


def test_a_stream_says_which_text_of_the_trace_and_of_the_content_was_accepted(live: Live) -> None:
    chunks = events(live.chat(stream=True, return_acceptance=True))[:-1]

    marked: dict[str, list[tuple[str, bool]]] = {"reasoning_content": [], "content": []}
    for choice in (chunk["choices"][0] for chunk in chunks):
        for part in choice.get("acceptance", []):
            kind = "reasoning_content" if "reasoning_content" in choice["delta"] else "content"
            marked[kind] += [(character, part["accepted"]) for character in part["text"]]
    answer = ["", *TRACE, "", *ANSWER]  # one character for each token; the markers have no text
    flags = [place % 7 != 6 for place in range(len(answer))]  # the last of the seven tokens of a step was sampled
    expected = list(zip(answer, flags, strict=True))
    assert marked["reasoning_content"] == expected[1 : len(TRACE) + 1]
    assert marked["content"] == expected[len(TRACE) + 2 :]


def test_tool_calls_within_the_reasoning_trace_are_ignored(live: Live) -> None:
    options: dict[str, Any] = {"tools": [tool("get_weather")]}

    message = live.chat(**options).json()["choices"][0]["message"]
    *chunks, _ = events(live.chat(**options, stream=True))

    assert (message["reasoning_content"], message["content"]) == (TRACE, "Here:")
    (call,) = message["tool_calls"]
    assert json.loads(call["function"]["arguments"]) == {"city": "Bern"}
    pieces = [piece for chunk in chunks for piece in chunk["choices"][0]["delta"].get("tool_calls", [])]
    assert json.loads("".join(piece["function"]["arguments"] for piece in pieces)) == {"city": "Bern"}


def test_the_content_is_null_if_max_tokens_ends_the_reasoning_trace(live: Live) -> None:
    choice = live.chat(max_tokens=5).json()["choices"][0]

    assert choice["finish_reason"] == "length"
    assert (choice["message"]["content"], choice["message"]["reasoning_content"]) == (None, TRACE[:4])


def test_the_reasoning_trace_remains_in_the_content_if_the_client_requests_this(live: Live) -> None:
    body = live.chat(separate_reasoning=False).json()

    assert body["choices"][0]["message"]["content"] == f"<think>{TRACE}</think>{ANSWER}"
    assert "reasoning_content" not in body["choices"][0]["message"]
    assert body["usage"]["completion_tokens_details"] == {"reasoning_tokens": 0}


def test_text_completions_have_no_separate_reasoning_trace(live: Live) -> None:
    assert live.complete().json()["choices"][0]["text"] == f"<think>{TRACE}</think>{ANSWER}"
