"""The server's process with a tiny model, used through the official `openai` package."""

import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import openai
import pytest
from pydantic import BaseModel

from tests.engine.openai.tool_model import make_tool_model, tool
from tests.engine.server.child import OPERATOR_TOKEN, TOKEN, Child, side_by_side
from tests.engine.server.live import wait_until

ASK: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "one two one two one"}]}


def client_of(server: Child, api_key: str = TOKEN) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key=api_key, max_retries=0, timeout=60)


Servers = Callable[[str], Child]
SERVERS = {
    "ngram": ("--drafter", "ngram"),
    "plain": ("--drafter", "none"),
    "patient": (),
    "impatient": ("--drain-seconds", "0.2"),
    "without a model": ("--model-dir", "nothing"),
}


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tool_model(tmp_path_factory.mktemp("model"), max_position_embeddings=4096)


@pytest.fixture(scope="module")
def servers(model_dir: Path) -> Iterator[Servers]:
    with side_by_side(model_dir, SERVERS) as servers:
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


def test_the_ready_line_says_where_it_listens(server: Child) -> None:
    assert server.ready["event"] == "ready"
    assert (server.ready["model"], server.ready["host"], server.ready["drafter"]) == ("tiny", "127.0.0.1", "ngram")
    assert server.ready["pid"] == server.process.pid
    assert server.get("/health").status_code == 200


def test_a_seed_makes_an_answer_come_again(client: openai.OpenAI) -> None:
    first, again, other = (
        client.chat.completions.create(**ASK, max_tokens=20, temperature=1.0, seed=seed) for seed in (5, 5, 6)
    )

    assert text_of(first) == text_of(again)
    assert text_of(first) != text_of(other)
    assert first.choices[0].finish_reason == "length"
    assert first.usage is not None
    assert first.usage.completion_tokens == 20


def test_a_drawn_seed_is_returned_and_reproduces_the_answer(client: openai.OpenAI) -> None:
    first = client.chat.completions.create(**ASK, max_tokens=20)
    assert first.model_extra is not None

    again = client.chat.completions.create(**ASK, max_tokens=20, seed=first.model_extra["seed"])

    assert text_of(first) == text_of(again)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_stream_is_the_whole_answer_in_pieces(client: openai.OpenAI, temperature: float) -> None:
    options: dict[str, Any] = ASK | {"max_tokens": 40, "temperature": temperature, "seed": 3}
    whole = client.chat.completions.create(**options)

    chunks = list(client.chat.completions.create(**options, stream=True, stream_options={"include_usage": True}))

    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1]) == text_of(whole)
    assert chunks[-2].choices[0].finish_reason == whole.choices[0].finish_reason
    assert chunks[-1].choices == []
    assert chunks[-1].usage == whole.usage
    assert chunks[-1].model_extra is not None
    assert whole.model_extra is not None
    figures = chunks[-1].model_extra["metrics"]["speculative_decoding"]
    assert figures["num_spec_steps"] == sum(figures["acceptance_histogram"])
    accepted = sum(length * passes for length, passes in enumerate(figures["acceptance_histogram"]))
    assert figures["num_accepted_draft_tokens"] == accepted


def test_an_answer_stops_before_a_stop_string(client: openai.OpenAI) -> None:
    options: dict[str, Any] = ASK | {"max_tokens": 40, "temperature": 0.8, "seed": 3}
    whole = text_of(client.chat.completions.create(**options))
    stop = whole[6:8]

    stopped = client.chat.completions.create(**options, stop=[stop])

    assert text_of(stopped) == whole[: whole.index(stop)]
    assert stopped.choices[0].finish_reason == "stop"
    assert stopped.usage is not None
    assert stopped.usage.completion_tokens < 40


def test_several_choices_differ_and_the_first_is_the_lone_one(client: openai.OpenAI) -> None:
    options: dict[str, Any] = ASK | {"max_tokens": 20, "seed": 3}

    several = client.chat.completions.create(**options, n=3)

    texts = [choice.message.content for choice in several.choices]
    assert len(set(texts)) == 3
    assert texts[0] == text_of(client.chat.completions.create(**options))


def test_log_probabilities_come_as_the_package_expects(client: openai.OpenAI) -> None:
    greedy = client.chat.completions.create(**ASK, max_tokens=5, temperature=0, logprobs=True, top_logprobs=3)

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


def test_a_text_completion_takes_text_or_ids(client: openai.OpenAI) -> None:
    by_text = client.completions.create(model="tiny", prompt="hi", max_tokens=10, temperature=0, logprobs=2)
    by_ids = client.completions.create(model="tiny", prompt=[75, 76], max_tokens=10, temperature=0)

    assert by_text.choices[0].logprobs is not None
    assert len(by_text.choices[0].logprobs.token_logprobs or []) == 10
    assert by_ids.usage is not None
    assert by_ids.usage.prompt_tokens == 2


ONE_CITY: dict[str, Any] = {"type": "object", "properties": {"city": {"enum": ["Bern", "Rom"]}}, "required": ["city"]}
ONE_CITY |= {"additionalProperties": False}
TOOLS: Any = [tool("get_weather", parameters=ONE_CITY), tool("get_time", parameters=ONE_CITY)]


def test_a_required_call_is_made_by_its_schema(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        **ASK, tools=TOOLS, tool_choice="required", parallel_tool_calls=False, max_tokens=200
    )

    (choice,) = answer.choices
    (call,) = choice.message.tool_calls or []
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", None)
    assert call.type == "function"
    assert call.function.name in ("get_weather", "get_time")
    assert json.loads(call.function.arguments)["city"] in ("Bern", "Rom")


def test_a_named_function_is_called_and_streamed(client: openai.OpenAI) -> None:
    named: Any = {"type": "function", "function": {"name": "get_time"}}
    with client.chat.completions.stream(**ASK, tools=TOOLS, tool_choice=named, max_tokens=200) as stream:
        stream.until_done()

    (choice,) = stream.get_final_completion().choices
    (call,) = choice.message.tool_calls or []
    assert (choice.finish_reason, call.function.name) == ("tool_calls", "get_time")
    assert json.loads(call.function.arguments)["city"] in ("Bern", "Rom")


def test_tools_may_be_left_uncalled_and_their_answers_sent_back(client: openai.OpenAI) -> None:
    auto = client.chat.completions.create(**ASK, tools=TOOLS, max_tokens=5)
    call: Any = {"id": "c1", "type": "function", "function": {"name": "get_time", "arguments": "{}"}}
    later: Any = [
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "noon"},
    ]
    answered = client.chat.completions.create(
        model="tiny", messages=[*ASK["messages"], *later], tools=TOOLS, max_tokens=5
    )

    assert (auto.choices[0].finish_reason, auto.choices[0].message.tool_calls) == ("length", None)
    assert answered.usage is not None
    assert auto.usage is not None
    assert answered.usage.prompt_tokens > auto.usage.prompt_tokens


class Forecast(BaseModel):
    sky: Literal["clear", "grey"]
    rain: bool


def test_an_answer_is_parsed_into_the_model_it_was_asked_for(client: openai.OpenAI) -> None:
    answer = client.chat.completions.parse(**ASK, response_format=Forecast, max_tokens=300, seed=4)

    assert isinstance(answer.choices[0].message.parsed, Forecast)
    assert answer.choices[0].finish_reason == "stop"


def test_vllms_structured_outputs_are_kept_to(client: openai.OpenAI) -> None:
    choice = client.chat.completions.create(**ASK, extra_body={"structured_outputs": {"choice": ["yes", "no"]}})
    regex = client.completions.create(
        model="tiny", prompt="hi", max_tokens=20, extra_body={"structured_outputs": {"regex": "[a-c]{3}"}}
    )

    assert text_of(choice) in ("yes", "no")
    assert len(regex.choices[0].text.strip("abc")) == 0
    assert len(regex.choices[0].text) == 3


def test_a_grammar_that_cannot_be_kept_to_is_refused(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.completions.create(model="tiny", prompt="hi", extra_body={"structured_outputs": {"regex": "(a"}})

    assert (refused.value.param, refused.value.code) == ("structured_outputs", "invalid_grammar")


def test_a_bias_decides_and_a_least_length_holds(client: openai.OpenAI) -> None:
    biased = client.completions.create(model="tiny", prompt="hi", max_tokens=4, logit_bias={"70": 100})
    ended: Any = {"logit_bias": {"2": 100}, "extra_body": {"min_tokens": 3}}
    least = client.completions.create(model="tiny", prompt="hi", max_tokens=9, **ended)

    assert len(set(biased.choices[0].text)) == 1
    assert least.usage is not None
    assert (least.usage.completion_tokens, least.choices[0].finish_reason) == (4, "stop")


def test_cached_prompt_tokens_are_counted_in_the_usage(client: openai.OpenAI) -> None:
    ask: Any = {"model": "tiny", "prompt": "the same beginning of both, " * 8, "max_tokens": 3}
    client.completions.create(**ask)
    usage = client.completions.create(**ask).usage

    assert usage is not None
    assert usage.prompt_tokens_details is not None
    assert usage.prompt_tokens // 2 < (usage.prompt_tokens_details.cached_tokens or 0) < usage.prompt_tokens


def test_every_chunk_has_the_usage_so_far_if_asked(client: openai.OpenAI) -> None:
    options: Any = {"include_usage": True, "continuous_usage_stats": True}
    chunks = list(client.chat.completions.create(**ASK, max_tokens=9, stream=True, stream_options=options))

    counts = [chunk.usage.completion_tokens for chunk in chunks if chunk.usage is not None]
    assert counts == sorted(counts)
    assert counts[-1] == 9
    assert len(counts) >= 3


def test_models_are_listed(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["tiny"]


def test_errors_are_the_packages_own(server: Child, client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(**ASK | {"model": "other"})
    with pytest.raises(openai.BadRequestError) as bad:
        client.chat.completions.create(**ASK, temperature=5)
    with pytest.raises(openai.BadRequestError) as unsupported:
        client.chat.completions.create(**ASK, reasoning_effort="high")
    with pytest.raises(openai.AuthenticationError) as foreign, client_of(server, api_key="wrong") as stranger:
        stranger.models.list()

    assert missing.value.code == "model_not_found"
    assert (bad.value.param, bad.value.code) == ("temperature", "invalid_value")
    assert (unsupported.value.param, unsupported.value.code) == ("reasoning_effort", "unsupported_parameter")
    assert foreign.value.code == "invalid_api_key"


def test_a_client_that_leaves_stops_the_generation(server: Child, client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(**ASK, stream=True, n=2, extra_body={"ignore_eos": True})
    next(stream)
    assert server.metric("vllm:num_requests_running") == 2

    stream.close()

    wait_until(lambda: server.metric("vllm:num_requests_running") == 0)


def test_drafting_does_not_change_the_answer(servers: Servers, client: openai.OpenAI) -> None:
    options: dict[str, Any] = ASK | {"max_tokens": 60, "temperature": 0.8, "seed": 11, "n": 4}
    drafted = client.chat.completions.create(**options)

    with client_of(servers("plain")) as plain_client:
        plain = plain_client.chat.completions.create(**options)

    assert [choice.message.content for choice in drafted.choices] == [
        choice.message.content for choice in plain.choices
    ]


def test_a_drafter_swapped_in_mid_answer_changes_no_token(servers: Servers, client: openai.OpenAI) -> None:
    options: Any = ASK | {"max_tokens": 400, "temperature": 0.8, "seed": 12, "extra_body": {"ignore_eos": True}}
    plain = client.chat.completions.create(**options)
    server = servers("plain")

    with client_of(server) as swapped, client_of(server, api_key=OPERATOR_TOKEN) as operator:
        stream = swapped.chat.completions.create(**options, stream=True)
        chunks = [next(stream), next(stream)]
        present = operator.post("/speculator", body={"drafter": "ngram"}, cast_to=dict[str, Any])
        chunks += stream
        figures = operator.get("/speculator", cast_to=dict[str, Any])["metrics"]["speculative_decoding"]

    assert present["drafter"] == "ngram"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == text_of(plain)
    assert figures["num_spec_steps"] > 0  # of this answer, since the swap


def test_sigterm_finishes_running_requests_and_refuses_new_ones(servers: Servers) -> None:
    server = servers("patient")
    with client_of(server) as client:
        stream = client.chat.completions.create(
            **ASK, stream=True, max_tokens=800, seed=1, extra_body={"ignore_eos": True}
        )
        chunks = [next(stream)]

        server.process.send_signal(signal.SIGTERM)
        wait_until(lambda: server.get("/health").status_code == 503)
        with pytest.raises(openai.InternalServerError) as refused:
            client.chat.completions.create(**ASK)
        chunks += stream

    assert refused.value.code == "server_draining"
    assert chunks[-1].choices[0].finish_reason == "length"
    assert server.process.wait(20) == 0


def test_what_outlasts_the_drain_gets_an_error_event(servers: Servers) -> None:
    server = servers("impatient")
    with client_of(server) as client:
        stream = client.chat.completions.create(**ASK, stream=True, extra_body={"ignore_eos": True})
        next(stream)
        server.process.send_signal(signal.SIGTERM)

        with pytest.raises(openai.APIError) as cut:
            list(stream)

    assert cut.value.code == "server_draining"
    assert server.process.wait(20) == 0


def test_a_model_that_cannot_be_loaded_is_reported_in_one_line(servers: Servers) -> None:
    server = servers("without a model")

    rest, _ = server.process.communicate(timeout=120)

    event = server.ready
    assert (event["event"], event["code"], server.process.returncode) == ("failed", "model_not_loadable", 1)
    assert "nothing" in event["message"]
    assert rest == ""
