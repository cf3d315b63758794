"""The same request gives the same tokens through each route, whole and streamed, with a real engine and a drafter."""

from collections.abc import Iterator
from typing import Any

import anthropic
import openai
import pytest

from engine.config import EngineConfig
from engine.load import load_engine
from engine.tokenizer import Tokenizer
from tests.engine.openai.tool_model import CITY, make_tool_model
from tests.engine.server.live import MODEL, TOKEN, Live, serve

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}
MESSAGES: Any = [{"role": "system", "content": "Count."}, {"role": "user", "content": "one two one two"}]
SAMPLINGS: list[dict[str, Any]] = [
    {"temperature": 0},
    {"temperature": 0.9, "top_p": 0.9, "top_k": 40, "frequency_penalty": 0.5, "stop": ["~"]},
]


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    folder = make_tool_model(tmp_path_factory.mktemp("model"))
    engine = load_engine(folder, drafter="suffix", config=EngineConfig(device="cpu", max_batch_size=4))
    with serve(engine, Tokenizer.load(folder), max_body_bytes=65536) as live:
        yield live


@pytest.fixture(scope="module")
def client(live: Live) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{live.url}/v1", api_key=TOKEN, max_retries=0) as client:
        yield client


def chat_text(live: Live, **body: Any) -> tuple[str, int]:
    response = live.http.post("/v1/chat/completions", json={"messages": MESSAGES, "max_tokens": 40, "seed": 3} | body)
    assert response.status_code == 200, response.text
    answer = response.json()
    return answer["choices"][0]["message"]["content"], answer["usage"]["completion_tokens"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_a_response_has_the_tokens_of_the_chat_completion(
    live: Live, client: openai.OpenAI, sampling: dict[str, Any], stream: bool
) -> None:
    extra = {name: value for name, value in sampling.items() if name not in ("temperature", "top_p")}
    same: Any = {name: value for name, value in sampling.items() if name in ("temperature", "top_p")}

    created: Any = client.responses.create(
        model=MODEL,
        instructions="Count.",
        input="one two one two",
        max_output_tokens=40,
        stream=stream,
        extra_body={"seed": 3, **extra},
        **same,
    )

    response = list(created)[-1].response if stream else created
    assert (response.output_text, response.usage.output_tokens) == chat_text(live, **sampling)


def test_a_text_completion_of_the_rendered_prompt_has_the_tokens_of_the_chat_completion(live: Live) -> None:
    prompt = live.http.post("/tokenize", json={"messages": MESSAGES}).json()["tokens"]

    answer = live.complete(prompt, max_tokens=40, seed=3).json()

    assert (answer["choices"][0]["text"], answer["usage"]["completion_tokens"]) == chat_text(live, temperature=0)


def test_a_schema_constrains_a_response_in_the_same_way_as_a_chat_completion(live: Live, client: openai.OpenAI) -> None:
    described: Any = {"name": "number", "schema": SCHEMA, "strict": True}
    text: Any = {"format": {"type": "json_schema", **described}}

    response = client.responses.create(
        model=MODEL,
        input=MESSAGES,
        text=text,
        temperature=0,
        max_output_tokens=40,
        extra_body={"seed": 3},
    )

    expected = chat_text(live, temperature=0, response_format={"type": "json_schema", "json_schema": described})
    assert response.usage is not None
    assert (response.output_text, response.usage.output_tokens) == expected
    assert response.output_text.startswith("{")


def test_a_required_call_has_the_same_arguments_through_each_route(live: Live, client: openai.OpenAI) -> None:
    function: Any = {"name": "get_weather", "parameters": CITY, "strict": True}
    tools: Any = [{"type": "function", **function}]

    response = client.responses.create(
        model=MODEL,
        input=MESSAGES,
        tools=tools,
        tool_choice="required",
        temperature=0,
        max_output_tokens=80,
        extra_body={"seed": 3},
    )

    body = {"messages": MESSAGES, "tools": [{"type": "function", "function": function}], "tool_choice": "required"}
    answer = live.http.post("/v1/chat/completions", json={**body, "temperature": 0, "max_tokens": 80, "seed": 3}).json()
    calls = [call["function"] for call in answer["choices"][0]["message"]["tool_calls"]]
    assert [{"name": c.name, "arguments": c.arguments} for c in response.output if c.type == "function_call"] == calls
    assert calls[0]["name"] == "get_weather"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_a_message_has_the_tokens_of_the_chat_completion(live: Live, sampling: dict[str, Any], stream: bool) -> None:
    translated = {"stop_sequences" if name == "stop" else name: value for name, value in sampling.items()}
    given: dict[str, Any] = {"model": MODEL, "max_tokens": 40, "system": "Count.", "messages": MESSAGES[1:]}
    given["extra_body"] = {"seed": 3, **translated}
    with anthropic.Anthropic(base_url=live.url, api_key=TOKEN, max_retries=0) as client:
        if stream:
            with client.messages.stream(**given) as events:
                message = events.get_final_message()
        else:
            message = client.messages.create(**given)

    text = "".join(block.text for block in message.content if block.type == "text")
    assert (text, message.usage.output_tokens) == chat_text(live, **sampling)
