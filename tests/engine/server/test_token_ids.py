"""The option `return_token_ids` and the route /tokenizer_info return the same members as vLLM."""

from collections.abc import Iterator
from typing import Any

import pytest

from engine.tokenizer import Tokenizer
from tests.engine.server.fake_engine import FakeEngine
from tests.engine.server.live import Live, serve
from tests.engine.server.test_app import events
from tests.tiny_model import CHAT_TEMPLATE, make_tiny_model

ANSWER = "Grüße, 漢! stop here"


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.load(make_tiny_model(tmp_path_factory.mktemp("model"), num_layers=1))


@pytest.fixture(scope="module")
def live(tokenizer: Tokenizer) -> Iterator[Live]:
    with serve(FakeEngine(lambda _: tokenizer.encode(ANSWER), tokens_per_step=3), tokenizer) as live:
        yield live


def streamed(live: Live, path: str, body: dict[str, Any]) -> tuple[list[int], list[int]]:
    """Returns the token ids of the prompt and of the answer from all chunks of a stream."""
    response = live.http.post(path, json=body | {"stream": True, "return_token_ids": True})
    chunks = [chunk for chunk in events(response) if chunk != "[DONE]"]
    answer = [token for chunk in chunks for choice in chunk["choices"] for token in choice.get("token_ids", [])]
    prompts = [part.get("prompt_token_ids") for chunk in chunks for part in (chunk, *chunk["choices"])]
    (prompt,) = [ids for ids in prompts if ids is not None]
    return prompt, answer


@pytest.mark.parametrize("stop", [None, "stop"])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_a_response_has_the_token_ids_of_its_prompt_and_answer(
    live: Live, tokenizer: Tokenizer, path: str, stop: str | None
) -> None:
    messages = [{"role": "user", "content": "hi"}]
    is_chat = path == "/v1/chat/completions"
    body: dict[str, Any] = {"messages": messages} if is_chat else {"prompt": "hi"}
    body |= {"stop": stop}

    whole = live.http.post(path, json=body | {"return_token_ids": True}).json()

    (choice,) = whole["choices"]
    prompt = tokenizer.encode_chat(messages) if is_chat else tokenizer.encode("hi")
    ids = tokenizer.encode(ANSWER)
    expected = [*ids, 2] if stop is None else ids[: len("Grüße, 漢! stop".encode())]
    assert (whole if is_chat else choice)["prompt_token_ids"] == prompt
    assert choice["token_ids"] == expected
    assert len(expected) == whole["usage"]["completion_tokens"]
    assert streamed(live, path, body) == (prompt, expected)


def test_without_return_token_ids_a_response_has_no_token_ids(live: Live) -> None:
    assert "token_ids" not in live.chat().text
    assert "token_ids" not in live.chat(stream=True).text


def test_the_members_of_tokenizer_info_have_vllms_names(live: Live) -> None:
    info = live.http.get("/tokenizer_info").json()

    assert (info["eos_token"], info["pad_token"], info["chat_template"]) == ("<|end|>", "<|endoftext|>", CHAT_TEMPLATE)
    assert info["model_max_length"] == FakeEngine.max_seq_len
    assert info["tokenizer_class"]
    assert live.http.get("/tokenizer_info", headers={"authorization": "no"}).status_code == 401
