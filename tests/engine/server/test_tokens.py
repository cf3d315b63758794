"""The routes /tokenize, /detokenize and /version, whose requests and responses have the same members as in vLLM."""

import tomllib
from collections.abc import Iterator
from typing import Any

import pytest

from engine.tokenizer import Tokenizer
from tests.engine.openai.tool_model import make_tool_model, tool
from tests.engine.server.fake_engine import FakeEngine
from tests.engine.server.live import Live, serve
from tests.engine.server.test_app import error_of
from tests.source_tree import ROOT


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.load(make_tool_model(tmp_path_factory.mktemp("model")))


@pytest.fixture(scope="module")
def live(tokenizer: Tokenizer) -> Iterator[Live]:
    with serve(FakeEngine(), tokenizer) as live:
        yield live


def post(live: Live, path: str, **body: Any) -> Any:
    return live.http.post(path, json=body).json()


def test_a_text_is_tokenized_and_its_tokens_are_detokenized(live: Live, tokenizer: Tokenizer) -> None:
    tokens = post(live, "/tokenize", prompt="Grüße <|end|>", return_token_strs=True)

    assert tokens["tokens"] == tokenizer.encode("Grüße <|end|>")
    assert (tokens["count"], tokens["max_model_len"]) == (len(tokens["tokens"]), 512)
    assert tokens["token_strs"][-2:] == [" ", "<|end|>"]
    assert post(live, "/detokenize", tokens=tokens["tokens"]) == {"prompt": "Grüße <|end|>"}


def test_messages_are_rendered_by_the_chat_template_and_tokenized(live: Live, tokenizer: Tokenizer) -> None:
    messages = [{"role": "user", "content": "hi"}]

    whole = post(live, "/tokenize", messages=messages, tools=[tool("f")])
    without_generation_prompt = post(live, "/tokenize", messages=messages, add_generation_prompt=False)

    rendered = tokenizer.decode(whole["tokens"])
    assert '"name": "f"' in rendered
    assert rendered.endswith("\nuser:hi\nassistant:")
    assert tokenizer.decode(without_generation_prompt["tokens"]) == "user:hi\n"
    assert without_generation_prompt["token_strs"] is None


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": ["a"]}, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": []}, "prompt"),
        ("/tokenize", {"prompt": "a", "model": "other"}, "model"),
        ("/tokenize", {"messages": "a"}, "messages"),
        ("/detokenize", {"tokens": "a"}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens"),
        ("/detokenize", {"tokens": [10**9]}, "tokens"),
        ("/detokenize", {"tokens": [True]}, "tokens"),
        ("/detokenize", {"tokens": [], "text": 1}, "text"),
    ],
)
def test_the_error_for_an_invalid_body_names_its_parameter(
    live: Live, path: str, body: dict[str, Any], param: str
) -> None:
    response = live.http.post(path, json=body)

    assert response.status_code in (400, 404)
    assert error_of(response)["param"] == param


def test_the_version_equals_the_version_in_pyproject(live: Live) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

    assert live.http.get("/version").json() == {"version": project["version"]}
