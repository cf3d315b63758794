"""A server in a separate process, with a tiny model, works with the official `openai` package."""

import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import openai
import pytest
from pydantic import BaseModel

from tests.engine.openai.tool_model import make_tool_model, tool
from tests.engine.server.child import OPERATOR_TOKEN, TOKEN, Child, running_servers
from tests.engine.server.live import wait_until

CHAT: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "one two one two one"}]}


def client_of(server: Child, api_key: str = TOKEN) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key=api_key, max_retries=0, timeout=60)


Servers = Callable[[str], Child]
SERVERS = {
    "ngram": ("--drafter", "ngram"),
    "plain": ("--drafter", "none"),
    "default drain time": (),
    "short drain time": ("--drain-seconds", "0.2"),
    "without a model": ("--model-dir", "nothing"),
    "too little memory": ("--memory-bytes", "100000000"),
}


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tool_model(tmp_path_factory.mktemp("model"), max_position_embeddings=4096)


@pytest.fixture(scope="module")
def servers(model_dir: Path) -> Iterator[Servers]:
    with running_servers(model_dir, SERVERS) as servers:
        yield servers


@pytest.fixture(scope="module")
def server(servers: Servers) -> Child:
    return servers("ngram")


@pytest.fixture(scope="module")
def client(server: Child) -> Iterator[openai.OpenAI]:
    with client_of(server) as client:
        yield client


def text_of(completion: Any) -> str:
    return str(completion.choices[0].message.content)


def test_the_ready_line_names_the_model_and_the_address(server: Child) -> None:
    assert server.ready["event"] == "ready"
    assert (server.ready["model"], server.ready["host"], server.ready["drafter"]) == ("tiny", "127.0.0.1", "ngram")
    assert server.ready["pid"] == server.process.pid
    assert server.get("/health").status_code == 200


def test_the_same_seed_reproduces_an_answer(client: openai.OpenAI) -> None:
    first, again, other = (
        client.chat.completions.create(**CHAT, max_tokens=20, temperature=1.0, seed=seed) for seed in (5, 5, 6)
    )

    assert text_of(first) == text_of(again)
    assert text_of(first) != text_of(other)
    assert first.choices[0].finish_reason == "length"
    assert first.usage is not None
    assert first.usage.completion_tokens == 20


def test_a_random_seed_is_returned_and_reproduces_the_answer(client: openai.OpenAI) -> None:
    first = client.chat.completions.create(**CHAT, max_tokens=20)
    assert first.model_extra is not None

    again = client.chat.completions.create(**CHAT, max_tokens=20, seed=first.model_extra["seed"])

    assert text_of(first) == text_of(again)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_streamed_answer_equals_the_unstreamed_answer(client: openai.OpenAI, temperature: float) -> None:
    options: dict[str, Any] = CHAT | {"max_tokens": 40, "temperature": temperature, "seed": 3}
    whole = client.chat.completions.create(**options)

    chunks = list(client.chat.completions.create(**options, stream=True, stream_options={"include_usage": True}))

    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1]) == text_of(whole)
    assert chunks[-2].choices[0].finish_reason == whole.choices[0].finish_reason
    assert chunks[-1].choices == []
    assert chunks[-1].usage == whole.usage
    assert chunks[-1].model_extra is not None
    assert whole.model_extra is not None
    statistics = chunks[-1].model_extra["metrics"]["speculative_decoding"]
    assert statistics["num_spec_steps"] == sum(statistics["acceptance_histogram"])
    accepted = sum(length * passes for length, passes in enumerate(statistics["acceptance_histogram"]))
    assert statistics["num_accepted_draft_tokens"] == accepted


def test_an_answer_stops_before_a_stop_string(client: openai.OpenAI) -> None:
    options: dict[str, Any] = CHAT | {"max_tokens": 40, "temperature": 0.8, "seed": 3}
    whole = text_of(client.chat.completions.create(**options))
    stop = whole[6:8]

    stopped = client.chat.completions.create(**options, stop=[stop])

    assert text_of(stopped) == whole[: whole.index(stop)]
    assert stopped.choices[0].finish_reason == "stop"
    assert stopped.usage is not None
    assert stopped.usage.completion_tokens < 40


def test_several_choices_differ_and_the_first_equals_a_single_choice(client: openai.OpenAI) -> None:
    options: dict[str, Any] = CHAT | {"max_tokens": 20, "seed": 3}

    several = client.chat.completions.create(**options, n=3)

    texts = [choice.message.content for choice in several.choices]
    assert len(set(texts)) == 3
    assert texts[0] == text_of(client.chat.completions.create(**options))


def test_log_probabilities_are_parsed_by_the_openai_package(client: openai.OpenAI) -> None:
    greedy = client.chat.completions.create(**CHAT, max_tokens=5, temperature=0, logprobs=True, top_logprobs=3)

    assert greedy.choices[0].logprobs is not None
    entries = greedy.choices[0].logprobs.content
    assert entries is not None
    assert len(entries) == 5
    for entry in entries:
        assert entry.bytes == entry.top_logprobs[0].bytes  # greedy decoding takes the best token
        assert entry.logprob == entry.top_logprobs[0].logprob < 0
        assert [top.logprob for top in entry.top_logprobs] == sorted(
            (top.logprob for top in entry.top_logprobs), reverse=True
        )


def test_the_prompt_of_a_text_completion_may_be_text_or_token_ids(client: openai.OpenAI) -> None:
    by_text = client.completions.create(model="tiny", prompt="hi", max_tokens=10, temperature=0, logprobs=2)
    by_ids = client.completions.create(model="tiny", prompt=[75, 76], max_tokens=10, temperature=0)

    assert by_text.choices[0].logprobs is not None
    assert len(by_text.choices[0].logprobs.token_logprobs or []) == 10
    assert by_ids.usage is not None
    assert by_ids.usage.prompt_tokens == 2


ONE_CITY: dict[str, Any] = {"type": "object", "properties": {"city": {"enum": ["Bern", "Rom"]}}, "required": ["city"]}
ONE_CITY |= {"additionalProperties": False}
TOOLS: Any = [tool("get_weather", parameters=ONE_CITY), tool("get_time", parameters=ONE_CITY)]


def test_tool_choice_required_gives_a_call_that_matches_the_schema(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        **CHAT, tools=TOOLS, tool_choice="required", parallel_tool_calls=False, max_tokens=200
    )

    (choice,) = answer.choices
    (call,) = choice.message.tool_calls or []
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", None)
    assert call.type == "function"
    assert call.function.name in ("get_weather", "get_time")
    assert json.loads(call.function.arguments)["city"] in ("Bern", "Rom")


def test_a_named_tool_choice_gives_a_streamed_call_of_this_function(client: openai.OpenAI) -> None:
    named: Any = {"type": "function", "function": {"name": "get_time"}}
    with client.chat.completions.stream(**CHAT, tools=TOOLS, tool_choice=named, max_tokens=200) as stream:
        stream.until_done()

    (choice,) = stream.get_final_completion().choices
    (call,) = choice.message.tool_calls or []
    assert (choice.finish_reason, call.function.name) == ("tool_calls", "get_time")
    assert json.loads(call.function.arguments)["city"] in ("Bern", "Rom")


def test_tools_are_optional_with_auto_and_tool_results_are_accepted(client: openai.OpenAI) -> None:
    auto = client.chat.completions.create(**CHAT, tools=TOOLS, max_tokens=5, extra_body={"ignore_eos": True})
    call: Any = {"id": "c1", "type": "function", "function": {"name": "get_time", "arguments": "{}"}}
    history: Any = [
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "noon"},
    ]
    answered = client.chat.completions.create(
        model="tiny", messages=[*CHAT["messages"], *history], tools=TOOLS, max_tokens=5
    )

    assert (auto.choices[0].finish_reason, auto.choices[0].message.tool_calls) == ("length", None)
    assert answered.usage is not None
    assert auto.usage is not None
    assert answered.usage.prompt_tokens > auto.usage.prompt_tokens


class Forecast(BaseModel):
    sky: Literal["clear", "grey"]
    rain: bool


def test_an_answer_with_a_response_format_is_parsed_into_the_pydantic_model(client: openai.OpenAI) -> None:
    answer = client.chat.completions.parse(**CHAT, response_format=Forecast, max_tokens=300, seed=4)

    assert isinstance(answer.choices[0].message.parsed, Forecast)
    assert answer.choices[0].finish_reason == "stop"


def test_vllms_option_structured_outputs_constrains_answers(client: openai.OpenAI) -> None:
    choice = client.chat.completions.create(**CHAT, extra_body={"structured_outputs": {"choice": ["yes", "no"]}})
    regex = client.completions.create(
        model="tiny", prompt="hi", max_tokens=20, extra_body={"structured_outputs": {"regex": "[a-c]{3}"}}
    )

    assert text_of(choice) in ("yes", "no")
    assert len(regex.choices[0].text.strip("abc")) == 0
    assert len(regex.choices[0].text) == 3


def test_an_invalid_grammar_is_refused(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.completions.create(model="tiny", prompt="hi", extra_body={"structured_outputs": {"regex": "(a"}})

    assert (refused.value.param, refused.value.code) == ("structured_outputs", "invalid_grammar")


def test_logit_bias_and_min_tokens_are_applied(client: openai.OpenAI) -> None:
    biased = client.completions.create(model="tiny", prompt="hi", max_tokens=4, logit_bias={"70": 100})
    biased_to_end: Any = {"logit_bias": {"2": 100}, "extra_body": {"min_tokens": 3}}  # 2: the end token
    ended = client.completions.create(model="tiny", prompt="hi", max_tokens=9, **biased_to_end)

    assert len(set(biased.choices[0].text)) == 1
    assert ended.usage is not None
    assert (ended.usage.completion_tokens, ended.choices[0].finish_reason) == (4, "stop")  # 3 tokens and the end token


def test_cached_prompt_tokens_are_counted_in_the_usage(client: openai.OpenAI) -> None:
    options: Any = {"model": "tiny", "prompt": "the same beginning of both, " * 8, "max_tokens": 3}
    client.completions.create(**options)
    usage = client.completions.create(**options).usage

    assert usage is not None
    assert usage.prompt_tokens_details is not None
    # The cache holds only complete blocks, so the end of the prompt is computed again.
    assert usage.prompt_tokens // 2 < (usage.prompt_tokens_details.cached_tokens or 0) < usage.prompt_tokens


def test_continuous_usage_stats_adds_the_usage_so_far_to_every_chunk(client: openai.OpenAI) -> None:
    options: Any = {"include_usage": True, "continuous_usage_stats": True}
    request: Any = CHAT | {"max_tokens": 9, "extra_body": {"ignore_eos": True}}
    chunks = list(client.chat.completions.create(**request, stream=True, stream_options=options))

    counts = [chunk.usage.completion_tokens for chunk in chunks if chunk.usage is not None]
    assert counts == sorted(counts)
    assert counts[-1] == 9
    assert len(counts) >= 3


def test_the_served_model_is_listed(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["tiny"]


def test_errors_are_raised_as_the_openai_packages_exceptions(server: Child, client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(**CHAT | {"model": "other"})
    with pytest.raises(openai.BadRequestError) as bad:
        client.chat.completions.create(**CHAT, temperature=5)
    with pytest.raises(openai.BadRequestError) as unsupported:
        client.chat.completions.create(**CHAT, reasoning_effort="high")
    with pytest.raises(openai.AuthenticationError) as unauthorized, client_of(server, api_key="wrong") as wrong_client:
        wrong_client.models.list()

    assert missing.value.code == "model_not_found"
    assert (bad.value.param, bad.value.code) == ("temperature", "invalid_value")
    assert (unsupported.value.param, unsupported.value.code) == ("reasoning_effort", "unsupported_parameter")
    assert unauthorized.value.code == "invalid_api_key"


def test_closing_a_stream_stops_the_generation(server: Child, client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(**CHAT, stream=True, n=2, extra_body={"ignore_eos": True})
    next(stream)
    assert server.metric("vllm:num_requests_running") == 2

    stream.close()

    wait_until(lambda: server.metric("vllm:num_requests_running") == 0)


def test_answers_with_and_without_a_drafter_are_equal(servers: Servers, client: openai.OpenAI) -> None:
    options: dict[str, Any] = CHAT | {"max_tokens": 60, "temperature": 0.8, "seed": 11, "n": 4}
    drafted = client.chat.completions.create(**options)

    with client_of(servers("plain")) as plain_client:
        plain = plain_client.chat.completions.create(**options)

    assert [choice.message.content for choice in drafted.choices] == [
        choice.message.content for choice in plain.choices
    ]


def test_swapping_the_drafter_during_an_answer_does_not_change_its_tokens(
    servers: Servers, client: openai.OpenAI
) -> None:
    options: Any = CHAT | {"max_tokens": 400, "temperature": 0.8, "seed": 12, "extra_body": {"ignore_eos": True}}
    plain = client.chat.completions.create(**options)
    server = servers("plain")

    with client_of(server) as plain_client, client_of(server, api_key=OPERATOR_TOKEN) as operator:
        stream = plain_client.chat.completions.create(**options, stream=True)
        chunks = [next(stream), next(stream)]
        installed = operator.post("/speculator", body={"drafter": "ngram"}, cast_to=dict[str, Any])
        chunks += stream
        statistics = operator.get("/speculator", cast_to=dict[str, Any])["metrics"]["speculative_decoding"]

    assert installed["drafter"] == "ngram"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == text_of(plain)
    assert statistics["num_spec_steps"] > 0  # steps of this answer after the swap


def test_after_sigterm_running_requests_finish_and_new_requests_are_refused(servers: Servers) -> None:
    server = servers("default drain time")
    with client_of(server) as client:
        stream = client.chat.completions.create(
            **CHAT, stream=True, max_tokens=800, seed=1, extra_body={"ignore_eos": True}
        )
        chunks = [next(stream)]

        server.process.send_signal(signal.SIGTERM)
        wait_until(lambda: server.get("/health").status_code == 503)
        with pytest.raises(openai.InternalServerError) as refused:
            client.chat.completions.create(**CHAT)
        chunks += stream

    assert refused.value.code == "server_draining"
    assert chunks[-1].choices[0].finish_reason == "length"
    assert server.process.wait(20) == 0


def test_a_stream_that_takes_longer_than_the_drain_time_gets_an_error_event(servers: Servers) -> None:
    server = servers("short drain time")
    with client_of(server) as client:
        stream = client.chat.completions.create(**CHAT, stream=True, extra_body={"ignore_eos": True})
        next(stream)
        server.process.send_signal(signal.SIGTERM)

        with pytest.raises(openai.APIError) as cut:
            list(stream)

    assert cut.value.code == "server_draining"
    assert server.process.wait(20) == 0


def test_a_model_that_does_not_fit_into_the_memory_is_refused_with_the_bytes_of_each_part(servers: Servers) -> None:
    server = servers("too little memory")
    server.process.communicate(timeout=120)

    assert (server.ready["event"], server.ready["code"]) == ("failed", "does_not_fit")
    assert "the engine may use 0.10 GB (weights 0.00 GB" in server.ready["message"]
    assert server.process.returncode == 1


def test_a_model_that_cannot_be_loaded_is_reported_in_one_json_line(servers: Servers) -> None:
    server = servers("without a model")

    rest, _ = server.process.communicate(timeout=120)

    event = server.ready
    assert (event["event"], event["code"], server.process.returncode) == ("failed", "model_not_loadable", 1)
    assert "nothing" in event["message"]
    assert rest == ""
