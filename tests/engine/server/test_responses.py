"""POST /v1/responses through the unmodified `openai` package: objects, events, tools, output formats and errors."""

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from engine.server.generations import USAGE_HEADER
from engine.tokenizer import Tokenizer
from tests.engine.openai.tool_model import CITY, answer_with_call, make_tool_model
from tests.engine.server.fake_engine import FakeEngine
from tests.engine.server.live import MODEL, TOKEN, Live, serve

ANSWER = f"Grüße, 漢!\n{answer_with_call({'city': 'Zürich'})}\n{answer_with_call({'city': 'Bern'})}"
TOOL: Any = {"type": "function", "name": "get_weather", "parameters": CITY, "strict": False}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.load(make_tool_model(tmp_path_factory.mktemp("model")))


@pytest.fixture(scope="module")
def live(tokenizer: Tokenizer) -> Iterator[Live]:
    engine = FakeEngine(lambda _: tokenizer.encode(ANSWER), tokens_per_step=7)
    engine.max_prompt = 2000
    with serve(engine, tokenizer) as live:
        yield live


@pytest.fixture(scope="module")
def client(live: Live) -> Iterator[openai.OpenAI]:
    options: dict[str, Any] = {"max_retries": 0, "_strict_response_validation": True}
    with openai.OpenAI(base_url=f"{live.url}/v1", api_key=TOKEN, **options) as client:
        yield client


def test_a_response_has_the_text_usage_and_seed_of_the_chat_completion(live: Live, client: openai.OpenAI) -> None:
    chat = live.chat("hi", seed=5, model=MODEL).json()

    response = client.responses.create(model=MODEL, input="hi", temperature=0, extra_body={"seed": 5})

    assert response.output_text == chat["choices"][0]["message"]["content"] == ANSWER
    assert (response.status, response.error, response.incomplete_details) == ("completed", None, None)
    assert response.usage is not None
    assert response.usage.input_tokens == chat["usage"]["prompt_tokens"]
    assert response.usage.output_tokens == chat["usage"]["completion_tokens"]
    assert response.usage.input_tokens_details.cached_tokens == chat["usage"]["prompt_tokens"] - 1
    assert response.model_extra is not None
    assert response.model_extra["seed"] == 5
    assert response.model_extra["metrics"]["speculative_decoding"]["num_spec_steps"] == 4
    assert response.store is False  # type: ignore[attr-defined]  # the package does not declare this member


def test_a_response_repeats_the_members_of_its_request(client: openai.OpenAI) -> None:
    text: Any = {"format": {"type": "text"}}
    given: dict[str, Any] = {"instructions": "Be brief.", "temperature": 0.5, "top_p": 0.9, "tools": [TOOL]}
    given |= {"metadata": {"a": "b"}, "max_output_tokens": 9, "parallel_tool_calls": False, "user": "u", "text": text}

    response = client.responses.create(model=MODEL, input="hi", **given)

    assert {name: response.to_dict()[name] for name in given} == given
    assert response.previous_response_id is None


def test_a_stream_has_openais_events_in_openais_order(client: openai.OpenAI) -> None:
    events = list(client.responses.create(model=MODEL, input="hi", tools=[TOOL], stream=True))

    kinds = [event.type.removeprefix("response.") for event in events]
    without_repetition = [kind for i, kind in enumerate(kinds) if i == 0 or kinds[i - 1] != kind]
    call = ["output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done"]
    assert without_repetition == [
        *("created", "in_progress"),
        *("output_item.added", "content_part.added", "output_text.delta", "output_text.done", "content_part.done"),
        *("output_item.done", *call, *call),
        "completed",
    ]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    places = [event.output_index for event in events if hasattr(event, "output_index")]
    assert places == sorted(places)
    assert set(places) == {0, 1, 2}


def test_the_events_of_a_stream_add_up_to_the_response_without_streaming(client: openai.OpenAI) -> None:
    whole = client.responses.create(model=MODEL, input="hi", tools=[TOOL], extra_body={"seed": 1}).to_dict()

    events = list(client.responses.create(model=MODEL, input="hi", tools=[TOOL], stream=True, extra_body={"seed": 1}))

    streamed: Any = events[-1].to_dict()["response"]
    for response in (whole, streamed):
        suffix = str(response["id"]).partition("_")[2]
        response["output"] = json.loads(json.dumps(response["output"]).replace(suffix, "x"))
        response |= {"id": "resp", "created_at": 0}
    assert streamed == whole
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert text == whole["output"][0]["content"][0]["text"] == "Grüße, 漢!"  # type: ignore[index]
    arguments = ["", "", ""]
    for event in events:
        if event.type == "response.function_call_arguments.delta":
            arguments[event.output_index] += event.delta
    assert [json.loads(one) for one in arguments[1:]] == [{"city": "Zürich"}, {"city": "Bern"}]


def test_comments_in_a_stream_tell_the_gateway_the_usage_so_far(live: Live) -> None:
    body = {"input": "hi", "stream": True, "stop": ["漢"]}

    response = live.http.post("/v1/responses", json=body, headers={USAGE_HEADER: "comments"})

    lines = response.text.splitlines()
    usages = [json.loads(line.removeprefix(": "))["usage"] for line in lines if line.startswith(": ")]
    last = json.loads(lines[-2].removeprefix("data: "))["response"]["usage"]
    numbers = [usage["completion_tokens"] for usage in usages]
    assert len(numbers) > 1
    assert numbers == sorted(numbers)
    assert numbers[-1] == last["output_tokens"]
    assert usages[-1]["prompt_tokens_details"]["cached_tokens"] == last["input_tokens_details"]["cached_tokens"]
    assert "\n: " not in live.http.post("/v1/responses", json=body).text


def test_items_in_events_are_empty_and_in_progress_when_they_are_added(client: openai.OpenAI) -> None:
    events = list(client.responses.create(model=MODEL, input="hi", tools=[TOOL], stream=True))

    added = [event.item.to_dict() for event in events if event.type == "response.output_item.added"]
    assert [item.get("content", item.get("arguments")) for item in added] == [[], "", ""]
    assert {item["status"] for item in added} == {"in_progress"}


def test_the_streaming_helper_of_the_client_returns_the_final_response(client: openai.OpenAI) -> None:
    with client.responses.stream(model=MODEL, input="hi") as stream:
        for _ in stream:
            pass
        final = stream.get_final_response()

    assert final.output_text == ANSWER


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_that_reaches_max_output_tokens_is_incomplete(client: openai.OpenAI, stream: bool) -> None:
    created: Any = client.responses.create(model=MODEL, input="hi", max_output_tokens=3, stream=stream)

    response = list(created)[-1].response if stream else created

    assert response.status == "incomplete"
    assert response.incomplete_details.reason == "max_output_tokens"
    assert (response.output_text, response.output[0].status) == ("Gr�", "incomplete")


def test_the_items_of_an_answer_are_accepted_as_the_input_of_the_next_turn(
    live: Live, client: openai.OpenAI, tokenizer: Tokenizer
) -> None:
    first = client.responses.create(model=MODEL, input="hi", tools=[TOOL])
    calls = [item for item in first.output if item.type == "function_call"]
    results = [{"type": "function_call_output", "call_id": call.call_id, "output": "mild"} for call in calls]
    turn: Any = [{"role": "user", "content": "hi"}, *(item.to_dict() for item in first.output), *results]

    second = client.responses.create(model=MODEL, input=turn, tools=[TOOL])

    definition = {"type": "function", "function": {"name": "get_weather", "parameters": CITY}}
    made = [
        {
            "id": call.call_id,
            "type": "function",
            "function": {"name": call.name, "arguments": json.loads(call.arguments)},
        }
        for call in calls
    ]
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "Grüße, 漢!", "tool_calls": made},
        *({"role": "tool", "tool_call_id": call.call_id, "content": "mild"} for call in calls),
    ]
    assert second.usage is not None
    assert second.usage.input_tokens == len(tokenizer.encode_chat(messages, tools=[definition]))


def test_log_probabilities_equal_those_of_the_chat_completion(live: Live, client: openai.OpenAI) -> None:
    chat = live.chat("hi", logprobs=True, top_logprobs=2).json()["choices"][0]["logprobs"]["content"]
    options: Any = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}

    whole: Any = client.responses.create(model=MODEL, input="hi", **options).output[0]
    events = list(client.responses.create(model=MODEL, input="hi", stream=True, **options))

    assert whole.to_dict()["content"][0]["logprobs"] == chat
    streamed = [
        one.to_dict() for event in events if event.type == "response.output_text.delta" for one in event.logprobs
    ]
    assert streamed == chat


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"previous_response_id": "resp_1"}, "previous_response_id"),
    ({"store": True}, "store"),
    ({"prediction": {"type": "content", "content": "x"}}, "prediction"),
    ({"background": True}, "background"),
    ({"conversation": "conv_1"}, "conversation"),
    ({"prompt": {"id": "pmpt_1"}}, "prompt"),
    ({"truncation": "auto"}, "truncation"),
    ({"max_tool_calls": 1}, "max_tool_calls"),
    ({"include": ["reasoning.encrypted_content"]}, "include[0]"),
    ({"top_logprobs": 2}, "top_logprobs"),
    ({"reasoning": {"summary": "auto"}}, "reasoning.summary"),
    ({"text": {"verbosity": "low"}}, "text.verbosity"),
    ({"text": {"format": {"type": "grammar"}}}, "text.format.type"),
    ({"text": {"format": {"type": "json_schema", "name": "x", "schema": 3}}}, "text.format.schema"),
    ({"text": {"format": {"type": "json_schema", "name": "x", "schema": {"type": "nonsense"}}}}, "text.format"),
    ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
    ({"tools": [{"type": "function", "name": "a b"}]}, "tools[0].name"),
    ({"tools": [TOOL | {"defer_loading": True}]}, "tools[0].defer_loading"),
    ({"tools": [TOOL], "tool_choice": {"type": "function", "name": "other"}}, "tool_choice"),
    ({"max_output_tokens": 0}, "max_output_tokens"),
    ({"messages": []}, "messages"),
    ({"input": []}, "input"),
    ({"input": None}, "input"),
    ({"input": [{"role": "tool", "content": "x"}]}, "input[0].role"),
    ({"input": [{"role": "user", "content": "x"}, {"role": "user", "content": 3}]}, "input[1].content"),
    ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0].type"),
    ({"input": [{"role": "user", "content": "x", "phase": "commentary"}]}, "input[0].phase"),
    ({"input": [{"type": "reasoning", "summary": []}]}, "input[0].content"),
    ({"input": [{"type": "reasoning", "summary": [{"type": "summary_text", "text": "x"}]}]}, "input[0].summary"),
    ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input[0].type"),
    ({"input": [{"type": "function_call", "call_id": "c", "name": "f", "arguments": "no"}]}, "input[0].arguments"),
    ({"input": [{"type": "function_call_output", "output": "x"}]}, "input[0].call_id"),
    ({"instructions": 3}, "instructions"),
    ({"temperature": 9}, "temperature"),
    ({"stream_options": {"include_obfuscation": True}, "stream": True}, "stream_options.include_obfuscation"),
]


@pytest.mark.parametrize(("body", "param"), REFUSED, ids=[param for _, param in REFUSED])
def test_an_unsupported_member_is_refused_under_the_name_that_the_caller_used(
    live: Live, body: dict[str, Any], param: str
) -> None:
    response = live.http.post("/v1/responses", json={"input": "hi"} | body)

    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert error["param"] == param
    assert param in error["message"] or error["code"] != "unknown_parameter"


def test_a_failing_stream_ends_with_a_failed_response_and_an_exception(tokenizer: Tokenizer) -> None:
    poison = tokenizer.encode("!")[0]
    engine = FakeEngine(lambda _: tokenizer.encode("abcdefgh"), poison=poison, poison_at=2)
    engine.max_prompt = 2000
    with serve(engine, tokenizer) as live, openai.OpenAI(base_url=f"{live.url}/v1", api_key=TOKEN) as client:
        stream = client.responses.create(model=MODEL, input="no!", stream=True)
        events = []
        with pytest.raises(openai.APIError) as caught:  # noqa: PT012  # the events before the exception are checked
            for event in stream:
                events.append(event)

    assert caught.value.code == "generation_failed"
    assert events[-1].type == "response.failed"
    assert (events[-1].response.status, events[-1].response.output_text) == ("failed", "ab")
