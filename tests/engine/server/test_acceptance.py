"""The option `return_acceptance`: chunks of a stream say which of their text comes from accepted draft tokens."""

from collections.abc import Iterator
from typing import Any

import pytest

from engine.tokenizer import Tokenizer
from tests.engine.server.fake_engine import FakeEngine
from tests.engine.server.live import Live, serve
from tests.engine.server.test_app import events
from tests.tiny_model import make_tiny_model

ANSWER = "abc déf ghi"
# The tokens are bytes. Each step returns three of them, and the last one was sampled. The "é" has two bytes and belongs
# to the second one, with which a step begins.
PARTS = [("ab", True), ("c", False), (" d", True), ("éf", True), (" ", False), ("gh", True), ("i", False)]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.load(make_tiny_model(tmp_path_factory.mktemp("model"), num_layers=1))


@pytest.fixture(scope="module")
def live(tokenizer: Tokenizer) -> Iterator[Live]:
    with serve(FakeEngine(lambda _: tokenizer.encode(ANSWER), tokens_per_step=3), tokenizer) as live:
        yield live


def body_of(path: str) -> dict[str, Any]:
    is_chat = path == "/v1/chat/completions"
    return {"messages": [{"role": "user", "content": "hi"}]} if is_chat else {"prompt": "hi"}


def choices_of(live: Live, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    response = live.http.post(path, json=body | {"stream": True})
    assert response.status_code == 200, response.text
    return [choice for chunk in events(response) if chunk != "[DONE]" for choice in chunk["choices"]]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_the_parts_of_each_chunk_are_its_text_and_say_which_tokens_were_accepted(live: Live, path: str) -> None:
    choices = choices_of(live, path, body_of(path) | {"return_acceptance": True})

    parts = []
    for choice in choices:
        text = choice["delta"].get("content", "") if "delta" in choice else choice["text"]
        assert "".join(part["text"] for part in choice.get("acceptance", [])) == text
        parts += [(part["text"], part["accepted"]) for part in choice.get("acceptance", [])]
    assert by_character(parts) == by_character(PARTS)


def by_character(parts: list[tuple[str, bool]]) -> list[tuple[str, bool]]:
    """The division of the answer among chunks depends on how fast the server reads the engine's outputs."""
    return [(character, accepted) for text, accepted in parts for character in text]


def test_a_stop_string_cuts_the_parts_like_the_text(live: Live) -> None:
    path = "/v1/chat/completions"
    choices = choices_of(live, path, body_of(path) | {"return_acceptance": True, "stop": "f g"})

    parts = [(part["text"], part["accepted"]) for choice in choices for part in choice.get("acceptance", [])]
    assert by_character(parts) == by_character(PARTS)[: len("abc dé")]


def test_with_the_option_set_to_false_a_stream_is_the_same_as_without_it(live: Live) -> None:
    for path, text in (("/v1/chat/completions", "delta"), ("/v1/completions", "text")):
        for extra in ({}, {"return_acceptance": False}):
            for choice in choices_of(live, path, body_of(path) | extra):
                assert choice.keys() == {"index", text, "logprobs", "finish_reason"}


def test_the_option_is_refused_without_a_stream_and_with_tools(live: Live) -> None:
    tool = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
    for extra in ({}, {"stream": True, "tools": [tool]}):  # type: dict[str, Any]
        response = live.http.post(
            "/v1/chat/completions", json=body_of("/v1/chat/completions") | {"return_acceptance": True} | extra
        )
        assert response.status_code == 400
        assert response.json()["error"]["param"] == "return_acceptance"
