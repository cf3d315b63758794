"""POST /v1/responses for reasoning models, through the `openai` package: the reasoning trace is a separate item."""

from collections.abc import Iterator
from typing import Any

import openai
import pytest

from engine.tokenizer import Tokenizer
from tests.engine.openai.thinking_model import BEGIN, END, make_thinking_model
from tests.engine.openai.tool_model import CITY, answer_with_call
from tests.engine.server.fake_engine import FakeEngine
from tests.engine.server.live import MODEL, TOKEN, Live, serve

TRACE = "Let me see."
ANSWER = f"Here: {answer_with_call({'city': 'Bern'})}"
TOOL: Any = {"type": "function", "name": "get_weather", "parameters": CITY, "strict": False}
LOGPROBS: Any = ["message.output_text.logprobs"]


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


@pytest.fixture(scope="module")
def client(live: Live) -> Iterator[openai.OpenAI]:
    options: dict[str, Any] = {"max_retries": 0, "_strict_response_validation": True}
    with openai.OpenAI(base_url=f"{live.url}/v1", api_key=TOKEN, **options) as client:
        yield client


def test_the_reasoning_trace_is_an_item_before_the_message_and_the_tool_call(client: openai.OpenAI) -> None:
    response = client.responses.create(model=MODEL, input="hi", tools=[TOOL])

    reasoning, message, call = response.output
    assert reasoning.type == "reasoning"
    assert reasoning.content is not None
    assert ([part.text for part in reasoning.content], reasoning.summary) == ([TRACE], [])
    assert (response.output_text, message.type, call.type) == ("Here:", "message", "function_call")
    assert response.usage is not None
    assert response.usage.output_tokens_details.reasoning_tokens == len(TRACE.encode()) + 2


@pytest.mark.parametrize("options", [{"tools": [TOOL]}, {"include": LOGPROBS}, {}], ids=["tools", "logprobs", "text"])
def test_the_events_of_a_stream_add_up_to_the_response(client: openai.OpenAI, options: dict[str, Any]) -> None:
    whole: Any = client.responses.create(model=MODEL, input="hi", **options).to_dict()["output"]

    events = list(client.responses.create(model=MODEL, input="hi", stream=True, **options))

    assert "".join(event.delta for event in events if event.type == "response.reasoning_text.delta") == TRACE
    assert [event.text for event in events if event.type == "response.reasoning_text.done"] == [TRACE]
    last = events[-1]
    assert last.type == "response.completed"
    streamed: Any = last.response.to_dict()["output"]
    assert [without_ids(item) for item in streamed] == [without_ids(item) for item in whole]
    done = [event.item.to_dict() for event in events if event.type == "response.output_item.done"]
    assert done == streamed


def test_the_log_probabilities_of_the_text_begin_after_the_reasoning_trace(client: openai.OpenAI) -> None:
    output: Any = client.responses.create(model=MODEL, input="hi", include=LOGPROBS).to_dict()["output"]

    (part,) = output[1]["content"]
    assert bytes(byte for entry in part["logprobs"] for byte in entry["bytes"]).decode() == part["text"] == ANSWER


def test_a_reasoning_trace_that_the_client_sends_back_is_part_of_the_assistants_message(
    client: openai.OpenAI, tokenizer: Tokenizer
) -> None:
    first = client.responses.create(model=MODEL, input="hi")
    turn: Any = [{"role": "user", "content": "hi"}, *(item.to_dict() for item in first.output)]

    second = client.responses.create(model=MODEL, input=[*turn, {"role": "user", "content": "go on"}])

    messages = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": ANSWER, "reasoning_content": TRACE},
        {"role": "user", "content": "go on"},
    ]
    assert second.usage is not None
    assert second.usage.input_tokens == len(tokenizer.encode_chat(messages))


def without_ids(item: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in item.items() if name not in ("id", "call_id")}
