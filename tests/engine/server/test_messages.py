"""POST /v1/messages through the unmodified `anthropic` package: blocks, events, tools, stop reasons and errors."""

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import pytest

from engine.openai.messages_api.requests import parse_message
from engine.openai.requests import parse_chat
from engine.server.generations import USAGE_HEADER
from engine.tokenizer import Tokenizer
from tests.engine.openai.thinking_model import BEGIN, END, make_thinking_model
from tests.engine.openai.tool_model import CITY, answer_with_call, make_tool_model
from tests.engine.server.fake_engine import FakeEngine
from tests.engine.server.live import MODEL, TOKEN, Live, serve

TRACE = "Let me see."
ANSWER = f"Grüße, 漢!\n{answer_with_call({'city': 'Zürich'})}\n{answer_with_call({'city': 'Bern'})}"
TOOL: Any = {"name": "get_weather", "input_schema": CITY}
HI: Any = [{"role": "user", "content": "hi"}]


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


def connect(live: Live, **options: Any) -> anthropic.Anthropic:
    strict: dict[str, Any] = {"max_retries": 0, "_strict_response_validation": True, "api_key": TOKEN}
    return anthropic.Anthropic(base_url=live.url, **strict | options)


@pytest.fixture(scope="module")
def client(live: Live) -> Iterator[anthropic.Anthropic]:
    with connect(live) as client:
        yield client


def without_ids(message: Any) -> dict[str, Any]:
    values = message.to_dict()
    suffix = values["id"].partition("_")[2]
    return json.loads(json.dumps(values).replace(suffix, "x"))  # type: ignore[no-any-return]


def test_a_message_has_the_same_reasoning_trace_text_and_calls_as_the_chat_completion(
    live: Live, client: anthropic.Anthropic
) -> None:
    tool = {"type": "function", "function": {"name": "get_weather", "parameters": CITY}}
    chat = live.chat("hi", seed=5, model=MODEL, tools=[tool], max_tokens=300).json()

    message = client.messages.create(
        model=MODEL, messages=HI, max_tokens=300, tools=[TOOL], extra_body={"seed": 5, "temperature": 0}
    )

    thinking, text, *calls = message.content
    assert thinking.type == "thinking"
    assert text.type == "text"
    expected = chat["choices"][0]["message"]
    assert (thinking.thinking, text.text) == (expected["reasoning_content"], expected["content"])
    assert [(call.name, call.input) for call in calls if call.type == "tool_use"] == [
        (call["function"]["name"], json.loads(call["function"]["arguments"])) for call in expected["tool_calls"]
    ]
    assert (message.stop_reason, message.stop_sequence, len(calls)) == ("tool_use", None, 2)
    usage, chat_usage = message.usage, chat["usage"]
    assert (usage.input_tokens, usage.cache_read_input_tokens) == (1, chat_usage["prompt_tokens"] - 1)
    assert usage.output_tokens == chat_usage["completion_tokens"]
    assert usage.output_tokens_details is not None
    assert usage.output_tokens_details.thinking_tokens == len(TRACE) + 2
    assert message.model_extra is not None
    assert message.model_extra["seed"] == 5
    assert message.model_extra["metrics"] == chat["metrics"]


def test_a_stream_has_anthropics_events_in_anthropics_order(client: anthropic.Anthropic) -> None:
    events = list(client.messages.create(model=MODEL, messages=HI, max_tokens=300, tools=[TOOL], stream=True))

    kinds = [event.type for event in events]
    without_repetition = [kind for i, kind in enumerate(kinds) if i == 0 or kinds[i - 1] != kind]
    block = ["content_block_start", "content_block_delta", "content_block_stop"]
    assert without_repetition == ["message_start", *block * 4, "message_delta", "message_stop"]
    deltas = [(event.index, event.delta.type) for event in events if event.type == "content_block_delta"]
    assert sorted(set(deltas)) == [
        (0, "thinking_delta"),
        (1, "text_delta"),
        (2, "input_json_delta"),
        (3, "input_json_delta"),
    ]
    started = [event.content_block.to_dict() for event in events if event.type == "content_block_start"]
    assert [one.get("thinking", one.get("text", one.get("input"))) for one in started] == ["", "", {}, {}]


@pytest.mark.parametrize("options", [{"tools": [TOOL]}, {}], ids=["tools", "text"])
def test_the_events_of_a_stream_add_up_to_the_message_without_streaming(
    client: anthropic.Anthropic, options: dict[str, Any]
) -> None:
    given: dict[str, Any] = {"model": MODEL, "messages": HI, "max_tokens": 300, "extra_body": {"seed": 1}} | options
    whole = client.messages.create(**given)

    with client.messages.stream(**given) as stream:
        streamed = stream.get_final_message()

    expected = without_ids(whole)
    del expected["metrics"]  # a stream has this member in the event `message_delta`
    assert without_ids(streamed) == expected | {"stop_details": None}


def test_comments_in_a_stream_tell_the_gateway_the_usage_so_far(live: Live) -> None:
    body = {"messages": HI, "max_tokens": 300, "stream": True}

    response = live.http.post("/v1/messages", json=body, headers={USAGE_HEADER: "comments"})

    lines = response.text.splitlines()
    usages = [json.loads(line.removeprefix(": "))["usage"] for line in lines if line.startswith(": ")]
    numbers = [usage["completion_tokens"] for usage in usages]
    assert len(numbers) > 1
    assert numbers == sorted(numbers)
    assert numbers[-1] == len((TRACE + ANSWER).encode()) + 3
    assert "\n: " not in live.http.post("/v1/messages", json=body).text


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("options", "end"),
    [
        ({"max_tokens": 16}, ("max_tokens", None)),
        ({"stop_sequences": ["~", "漢"]}, ("stop_sequence", "漢")),
        ({"tools": [TOOL]}, ("tool_use", None)),
        ({}, ("end_turn", None)),
    ],
)
def test_a_message_has_the_reason_for_which_it_ended(
    client: anthropic.Anthropic, options: dict[str, Any], end: tuple[str, str | None], stream: bool
) -> None:
    given: dict[str, Any] = {"model": MODEL, "messages": HI, "max_tokens": 300} | options

    if stream:
        with client.messages.stream(**given) as events:
            message: Any = events.get_final_message()
    else:
        message = client.messages.create(**given)

    assert (message.stop_reason, message.stop_sequence) == end


@pytest.mark.parametrize("stream", [False, True])
def test_the_text_of_a_tool_call_that_max_tokens_cuts_off_is_kept(live: Live, stream: bool) -> None:
    cut = len((TRACE + ANSWER).encode()) + 2 - len('rn"}}\n</tool_call>')
    body = {"messages": HI, "max_tokens": cut, "tools": [TOOL], "stream": stream}

    response = live.http.post("/v1/messages", json=body)

    if stream:
        events = [json.loads(line[6:]) for line in response.text.splitlines() if line.startswith("data: ")]
        deltas = [event["delta"] for event in events if event["type"] == "content_block_delta" and event["index"] == 3]
        assert "".join(delta["partial_json"] for delta in deltas) == '{"city": "Be'
    else:
        call = response.json()["content"][-1]
        assert (call["input"], call["partial_json"]) == ({}, '{"city": "Be')
        assert response.json()["stop_reason"] == "max_tokens"


def test_the_blocks_of_a_message_are_accepted_as_the_input_of_the_next_turn(
    client: anthropic.Anthropic, tmp_path_factory: pytest.TempPathFactory
) -> None:
    first = client.messages.create(model=MODEL, messages=HI, max_tokens=300, tools=[TOOL])
    calls = [block for block in first.content if block.type == "tool_use"]
    results: Any = [
        {"type": "tool_result", "tool_use_id": calls[0].id, "content": [{"type": "text", "text": "mild"}]},
        {"type": "tool_result", "tool_use_id": calls[1].id, "content": "no such city", "is_error": True},
        {"type": "text", "text": "go on", "cache_control": {"type": "ephemeral"}},
    ]
    turn: Any = [*HI, {"role": "assistant", "content": first.content}, {"role": "user", "content": results}]
    tools = Tokenizer.load(make_tool_model(tmp_path_factory.mktemp("tools")))
    engine = FakeEngine(lambda _: tools.encode("fine"))
    engine.max_prompt = 2000

    with serve(engine, tools) as live, connect(live) as other:
        second = other.messages.create(model=MODEL, messages=turn, max_tokens=9, tools=[TOOL], system="Be brief.")

    made = [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.input}} for call in calls
    ]
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "Grüße, 漢!", "reasoning_content": TRACE, "tool_calls": made},
        {"role": "tool", "tool_call_id": calls[0].id, "content": "mild"},
        {"role": "tool", "tool_call_id": calls[1].id, "content": "Error:\nno such city"},
        {"role": "user", "content": "go on"},
    ]
    definition = {"type": "function", "function": {"name": "get_weather", "parameters": CITY}}
    usage = second.usage
    assert usage.cache_read_input_tokens is not None
    assert usage.input_tokens + usage.cache_read_input_tokens == len(tools.encode_chat(messages, tools=[definition]))


@pytest.mark.parametrize(
    ("thinking", "switch"),
    [
        ({"type": "disabled"}, {"enable_thinking": False}),
        ({"type": "enabled", "budget_tokens": 20}, {"enable_thinking": True, "thinking_token_budget": 20}),
        ({"type": "adaptive"}, {"enable_thinking": True}),
    ],
)
def test_thinking_sets_the_templates_thinking_option_and_the_thinking_budget(
    tokenizer: Tokenizer, thinking: dict[str, Any], switch: dict[str, Any]
) -> None:
    same = {"messages": HI, "max_tokens": 50, "seed": 1}
    settings: dict[str, Any] = {"tokenizer": tokenizer, "max_seq_len": 512, "call_form": None}

    parsed = parse_message(same | {"thinking": thinking}, **settings)

    expected = parse_chat(same | switch, **settings)
    assert (parsed.prompts, parsed.choices) == (expected.prompts, expected.choices)


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"max_tokens": None}, "max_tokens"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": 100_000}, "max_tokens"),
    ({"container": "c"}, "container"),
    ({"prediction": {"type": "content", "content": "x"}}, "prediction"),
    ({"service_tier": "flex"}, "service_tier"),
    ({"stop": ["x"]}, "stop"),
    ({"n": 2}, "n"),
    ({"logprobs": True}, "logprobs"),
    ({"stop_sequences": [""]}, "stop_sequences"),
    ({"temperature": 9}, "temperature"),
    ({"messages": []}, "messages"),
    ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
    ({"messages": [*HI, {"role": "assistant", "content": "The"}]}, "messages[1].role"),
    ({"messages": [{"role": "user", "content": 3}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": "x", "name": "y"}]}, "messages[0].name"),
    ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "messages[0].content[0].type"),
    ({"messages": [{"role": "user", "content": [{"type": "text", "text": "x", "citations": [1]}]}]},
     "messages[0].content[0].citations"),
    ({"messages": [{"role": "user", "content": [{"type": "tool_result", "content": "x"}]}]},
     "messages[0].content[0].tool_use_id"),
    ({"system": "s", "messages": [{"role": "assistant", "content": [
        {"type": "tool_use", "id": "t", "name": "", "input": {}}]}, *HI]}, "messages[0].content[0].name"),
    ({"messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "f", "input": "x"}]}]},
     "messages[0].content[0].input"),
    ({"messages": [{"role": "assistant", "content": [{"type": "redacted_thinking", "data": "x"}]}]},
     "messages[0].content[0].type"),
    ({"system": 3}, "system"),
    ({"system": [{"type": "image"}]}, "system[0].type"),
    ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0].type"),
    ({"tools": [TOOL | {"name": "a b"}]}, "tools[0].name"),
    ({"tools": [TOOL | {"input_schema": 3}]}, "tools[0].input_schema"),
    ({"tools": [TOOL | {"defer_loading": True}]}, "tools[0].defer_loading"),
    ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "other"}}, "tool_choice"),
    ({"tools": [TOOL], "tool_choice": {"type": "some"}}, "tool_choice.type"),
    ({"thinking": {"type": "between_tools"}}, "thinking.type"),
    ({"thinking": {"type": "enabled"}}, "thinking.budget_tokens"),
    ({"thinking": {"type": "enabled", "budget_tokens": 300}}, "thinking.budget_tokens"),
    ({"thinking": {"type": "disabled", "budget_tokens": 3}}, "thinking.budget_tokens"),
    ({"thinking": {"type": "adaptive", "display": "omitted"}}, "thinking.display"),
    ({"output_config": {"format": {"type": "json_schema", "schema": {"type": "nonsense"}}}}, "output_config.format"),
    ({"output_config": {"effort": "max"}}, "output_config.effort"),
    ({"output_config": {"task_budget": {}}}, "output_config.task_budget"),
]  # fmt: skip


@pytest.mark.parametrize(("body", "param"), REFUSED, ids=[param for _, param in REFUSED])
def test_an_unsupported_member_is_refused_under_the_name_that_the_caller_used(
    live: Live, body: dict[str, Any], param: str
) -> None:
    response = live.http.post("/v1/messages", json={"messages": HI, "max_tokens": 300} | body)

    assert response.status_code == 400, response.text
    assert response.json()["type"] == "error"
    error = response.json()["error"]
    assert (error["type"], error["param"]) == ("invalid_request_error", param)
    assert param in error["message"] or error["code"] == "invalid_grammar"


COUNTED: list[dict[str, Any]] = [
    {"messages": HI},
    {"messages": HI, "system": "Be brief."},
    {"messages": HI, "system": [{"type": "text", "text": "Be brief."}], "thinking": {"type": "disabled"}},
    {"messages": HI, "tools": [TOOL], "tool_choice": {"type": "any"}},
    {"messages": HI, "tools": [TOOL], "tool_choice": {"type": "none"}, "thinking": {"type": "adaptive"}},
    {"messages": [*HI, {"role": "assistant", "content": [{"type": "text", "text": "Hello"}]}, *HI]},
]


@pytest.mark.parametrize("body", COUNTED)
def test_counting_tokens_gives_the_input_tokens_of_the_answered_message(
    client: anthropic.Anthropic, body: dict[str, Any]
) -> None:
    message = client.messages.create(model=MODEL, max_tokens=300, **body)

    count = client.messages.count_tokens(model=MODEL, **body)

    usage = message.usage
    assert count.to_dict() == {"input_tokens": usage.input_tokens + (usage.cache_read_input_tokens or 0)}


def test_the_tokens_of_a_prompt_that_is_too_long_for_a_message_are_counted(client: anthropic.Anthropic) -> None:
    long: Any = [{"role": "user", "content": "a b c " * 600}]

    with pytest.raises(anthropic.BadRequestError):
        client.messages.create(model=MODEL, max_tokens=300, messages=long)
    assert client.messages.count_tokens(model=MODEL, messages=long).input_tokens > 1000


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"messages": HI, "max_tokens": 5}, "max_tokens"),
        ({"messages": HI, "stream": True}, "stream"),
        ({"messages": []}, "messages"),
        ({"messages": HI, "tools": [TOOL | {"name": "a b"}]}, "tools[0].name"),
        ({"messages": HI, "thinking": {"type": "between_tools"}}, "thinking.type"),
        ({"messages": HI, "model": "other"}, "model"),
        ({"messages": HI, "model": 3}, "model"),
    ],
)
def test_a_refused_token_count_has_anthropics_error_format_and_names_the_member(
    live: Live, body: dict[str, Any], param: str
) -> None:
    response = live.http.post("/v1/messages/count_tokens", json=body)

    assert response.status_code == (404 if body.get("model") == "other" else 400)
    assert (response.json()["type"], response.json()["error"]["param"]) == ("error", param)


def test_errors_have_anthropics_types(live: Live, client: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.NotFoundError) as unknown:
        client.messages.create(model="other", messages=HI, max_tokens=9)
    with connect(live, api_key="wrong") as stranger, pytest.raises(anthropic.AuthenticationError) as refused:
        stranger.messages.create(model=MODEL, messages=HI, max_tokens=9)

    for caught, kind in ((unknown, "not_found_error"), (refused, "authentication_error")):
        assert isinstance(caught.value.body, dict)
        assert (caught.value.body["type"], caught.value.body["error"]["type"]) == ("error", kind)


def test_the_token_is_accepted_in_either_header_but_refused_if_the_other_header_is_wrong(live: Live) -> None:
    body = {"messages": HI, "max_tokens": 9}
    url = f"{live.url}/v1/messages"

    def status(**headers: str) -> int:
        del live.http.headers["authorization"]
        try:
            return live.http.post(url, json=body, headers=headers).status_code
        finally:
            live.http.headers["authorization"] = f"Bearer {TOKEN}"

    assert status(**{"x-api-key": TOKEN}) == status(authorization=f"Bearer {TOKEN}") == 200
    assert status(**{"x-api-key": TOKEN, "authorization": "Bearer no"}) == status(**{"x-api-key": "no"}) == 401


def test_a_failing_stream_ends_with_an_exception_in_anthropics_client(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    tokenizer = Tokenizer.load(make_tool_model(tmp_path_factory.mktemp("failing")))
    engine = FakeEngine(lambda _: tokenizer.encode("abcdefgh"), poison=tokenizer.encode("!")[0], poison_at=2)
    engine.max_prompt = 2000
    texts = []
    with serve(engine, tokenizer) as live, connect(live) as client:
        failing: Any = [{"role": "user", "content": "no!"}]
        stream = client.messages.create(model=MODEL, messages=failing, max_tokens=9, stream=True)
        with pytest.raises(anthropic.APIStatusError) as caught:  # noqa: PT012  # earlier events are checked
            for event in stream:
                texts += [event.delta.text] if event.type == "content_block_delta" else []  # type: ignore[union-attr]

    assert isinstance(caught.value.body, dict)
    assert (caught.value.body["error"]["type"], caught.value.body["error"]["code"]) == (
        "api_error",
        "generation_failed",
    )
    assert texts == ["ab"]
