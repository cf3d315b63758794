"""JSON bodies are parsed into engine requests, and invalid bodies are refused with an error that names the field."""

import re
from typing import Any

import pytest

from engine.fields import InvalidRequest
from engine.openai import without_effect
from engine.openai.limits import limits_block
from engine.openai.requests import ParsedRequest, parse_chat, parse_completion
from engine.tokenizer import Tokenizer
from tests.engine.openai.tool_model import make_tool_model
from tests.source_tree import ROOT
from tests.tiny_model import make_tiny_model

MAX_SEQ_LEN = 100


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.load(make_tiny_model(tmp_path_factory.mktemp("model"), "llama", num_layers=1))


@pytest.fixture(scope="module")
def tool_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.load(make_tool_model(tmp_path_factory.mktemp("model")))


def chat(tokenizer: Tokenizer, **body: Any) -> ParsedRequest:
    body = {"messages": [{"role": "user", "content": "hi"}]} | body
    return parse_chat(body, tokenizer=tokenizer, max_seq_len=MAX_SEQ_LEN)


def complete(tokenizer: Tokenizer, **body: Any) -> ParsedRequest:
    return parse_completion({"prompt": "hi"} | body, tokenizer=tokenizer, max_seq_len=MAX_SEQ_LEN)


def test_null_options_have_their_default_values(tokenizer: Tokenizer) -> None:
    names = ["temperature", "top_p", "top_k", "min_p", "n", "stop", "stream", "logprobs", "max_tokens", "tools", "user"]

    parsed = chat(tokenizer, **dict.fromkeys(names))

    assert parsed.sampling.temperature == 1.0
    assert (parsed.sampling.top_p, parsed.sampling.top_k, parsed.sampling.min_p) == (1.0, 0, 0.0)
    assert (parsed.n, parsed.stop, parsed.stream, parsed.sampling.num_logprobs) == (1, (), False, None)


def test_options_are_parsed_into_sampling_parameters(tokenizer: Tokenizer) -> None:
    parsed = chat(
        tokenizer,
        temperature=0.5,
        top_p=0.9,
        top_k=40,
        min_p=0.1,
        seed=7,
        max_completion_tokens=3,
        max_tokens=5,
        stop="x",
        stop_token_ids=[5],
        ignore_eos=True,
        logprobs=True,
        top_logprobs=4,
        min_tokens=2,
        repetition_penalty=1.5,
        presence_penalty=-1,
        frequency_penalty=0.5,
        logit_bias={"7": -100, "5": 1.5},
    )

    assert parsed.sampling.temperature == 0.5
    assert parsed.sampling.min_tokens == 2
    assert (parsed.sampling.repetition_penalty, parsed.sampling.presence_penalty) == (1.5, -1.0)
    assert (parsed.sampling.frequency_penalty, parsed.sampling.logit_bias) == (0.5, ((5, 1.5), (7, -100.0)))
    assert (parsed.sampling.top_p, parsed.sampling.top_k, parsed.sampling.min_p) == (0.9, 40, 0.1)
    assert (parsed.sampling.seed, parsed.sampling.max_tokens) == (7, 3)  # max_completion_tokens overrides max_tokens
    assert parsed.sampling.stop_token_ids == frozenset({5})
    assert parsed.sampling.ignore_eos
    assert (parsed.sampling.num_logprobs, parsed.stop) == (4, ("x",))


def test_without_max_tokens_an_answer_may_fill_the_context(tokenizer: Tokenizer) -> None:
    remaining = MAX_SEQ_LEN - 2  # the prompt "hi" has two tokens

    parsed = complete(tokenizer)

    assert parsed.sampling.max_tokens == remaining
    assert limits_block(parsed.limits) == {"limits": {"max_tokens": remaining, "set_by": "context"}}
    assert limits_block(complete(tokenizer, max_tokens=remaining).limits) == {}


@pytest.mark.parametrize("param", ["max_tokens", "max_completion_tokens"])
def test_the_error_for_max_tokens_beyond_the_context_states_how_many_tokens_remain(
    tokenizer: Tokenizer, param: str
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        chat(tokenizer, **{param: 10_000})

    room = chat(tokenizer).sampling.max_tokens
    assert (caught.value.code, caught.value.param) == ("max_tokens_too_large", param)
    assert f"{param} is 10000, but the context of 100 tokens leaves {room} for the answer" in caught.value.message
    assert chat(tokenizer, **{param: room}).sampling.max_tokens == room
    with pytest.raises(InvalidRequest, match=f"leaves {room}"):
        chat(tokenizer, **{param: room + 1})


def test_the_token_limit_of_a_job_lowers_max_tokens_of_its_requests(tokenizer: Tokenizer) -> None:
    def capped(**body: Any) -> int:
        parsed = parse_completion(
            {"prompt": "hi"} | body, tokenizer=tokenizer, max_seq_len=MAX_SEQ_LEN, max_tokens_cap=9
        )
        assert parsed.sampling.min_tokens <= parsed.sampling.max_tokens
        return parsed.sampling.max_tokens

    assert [capped(), capped(max_tokens=4), capped(max_tokens=10_000, min_tokens=50)] == [9, 4, 9]


def test_a_prompt_that_fills_the_context_is_refused_with_both_lengths(tokenizer: Tokenizer) -> None:
    with pytest.raises(InvalidRequest, match=r"maximum context length is 100 tokens.* has 100") as caught:
        complete(tokenizer, prompt="x" * MAX_SEQ_LEN)
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "prompt")


def test_each_choice_has_a_different_seed_and_the_first_has_the_seed_of_the_request(tokenizer: Tokenizer) -> None:
    several = chat(tokenizer, seed=7, n=4).engine_requests("r")

    assert len({request.sampling.seed for request in several}) == 4
    assert several[0].sampling == chat(tokenizer, seed=7).sampling
    assert [request.request_id for request in several] == ["r-0", "r-1", "r-2", "r-3"]
    assert chat(tokenizer, seed=7, n=4).engine_requests("r") == several


def test_requests_with_adjacent_seeds_have_different_choice_seeds(tokenizer: Tokenizer) -> None:
    seeds = [request.sampling.seed for s in range(20) for request in chat(tokenizer, seed=s, n=3).engine_requests("r")]

    assert len(set(seeds)) == 60


def test_a_request_without_a_seed_gets_a_random_seed(tokenizer: Tokenizer) -> None:
    first, second = chat(tokenizer), chat(tokenizer)

    assert first.seed != second.seed
    assert first.seed == first.sampling.seed < 2**53


def test_the_default_seed_is_used_if_the_body_has_no_seed(tokenizer: Tokenizer) -> None:
    body = {"prompt": "hi"}

    assert parse_completion(body, tokenizer=tokenizer, max_seq_len=9, default_seed=5).seed == 5
    assert parse_completion(body | {"seed": 1}, tokenizer=tokenizer, max_seq_len=9, default_seed=5).seed == 1


def test_a_negative_seed_is_converted_to_unsigned_64_bits(tokenizer: Tokenizer) -> None:
    assert chat(tokenizer, seed=-1).sampling.seed == 2**64 - 1


def test_text_parts_of_a_message_are_joined_by_newlines(tokenizer: Tokenizer) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]

    assert (
        chat(tokenizer, messages=[{"role": "user", "content": parts}]).prompts
        == chat(tokenizer, messages=[{"role": "user", "content": "a\nb"}]).prompts
    )


def test_the_role_developer_is_rendered_as_system(tokenizer: Tokenizer) -> None:
    user = {"role": "user", "content": "x"}

    assert (
        chat(tokenizer, messages=[{"role": "developer", "content": "y"}, user]).prompts
        == chat(tokenizer, messages=[{"role": "system", "content": "y"}, user]).prompts
    )


def test_a_prompt_may_be_a_string_or_token_ids_or_a_list_of_strings_or_token_ids(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("hi")

    assert complete(tokenizer, prompt=ids).prompts == (tuple(ids),)
    assert complete(tokenizer, prompt=[ids, ids]).prompts == (tuple(ids), tuple(ids))
    assert complete(tokenizer, prompt=["hi", "h"]).prompts == (tuple(ids), (ids[0],))


def test_choices_are_ordered_by_prompt(tokenizer: Tokenizer) -> None:
    requests = complete(tokenizer, prompt=["hi", "h"], n=2).engine_requests("r")

    assert [len(request.prompt_token_ids) for request in requests] == [2, 2, 1, 1]
    assert [request.sampling.max_tokens for request in requests] == [98, 98, 99, 99]
    assert len({request.sampling.seed for request in requests}) == 4


@pytest.mark.parametrize("name", sorted(without_effect.BODY))
def test_options_without_effect_on_an_answer_are_accepted(tokenizer: Tokenizer, name: str) -> None:
    assert chat(tokenizer, **{name: "anything"}).n == 1


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("functions", []),
        ("function_call", "none"),
        ("best_of", 1),
    ],
)
def test_unsupported_options_are_accepted_with_neutral_values(tokenizer: Tokenizer, name: str, value: Any) -> None:
    assert chat(tokenizer, **{name: value}).n == 1


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("functions", [{"name": "f"}]),
        ("best_of", 2),
        ("n", 17),
        ("reasoning_effort", "high"),
        ("store", True),
        ("service_tier", "priority"),
    ],
)
def test_unsupported_options_are_refused_by_name(tokenizer: Tokenizer, name: str, value: Any) -> None:
    with pytest.raises(InvalidRequest) as caught:
        chat(tokenizer, **{name: value})
    assert (caught.value.param, caught.value.code, caught.value.status) == (name, "unsupported_parameter", 400)
    assert name in caught.value.message


CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
TOOL = {"type": "function", "function": {"name": "f"}}


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"messages": [{"role": "user", "content": "x", "name": "Ann"}]}, "messages[0].name"),
        ({"messages": [{"role": "assistant", "content": "x", "refusal": "no"}]}, "messages[0].refusal"),
        ({"messages": [{"role": "user", "content": "x", "cache_control": {}}]}, "messages[0].cache_control"),
        (
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "x", "detail": "low"}]}]},
            "messages[0].content[0].detail",
        ),
        ({"messages": [{"role": "assistant", "tool_calls": [CALL | {"extra": 1}]}]}, "messages[0].tool_calls[0].extra"),
        ({"messages": [{"role": "tool", "tool_call_id": "c", "content": "x", "x": 1}]}, "messages[0].x"),
        ({"tools": [TOOL | {"cache_control": {}}]}, "tools[0].cache_control"),
        ({"tools": [TOOL], "tool_choice": TOOL | {"mode": "auto"}}, "tool_choice.mode"),
        ({"response_format": {"type": "json_object", "schema": {}}}, "response_format.schema"),
        ({"stream": True, "stream_options": {"include_obfuscation": True}}, "stream_options.include_obfuscation"),
    ],
)
def test_a_nested_member_that_is_not_supported_is_refused_by_name(
    tool_tokenizer: Tokenizer, body: dict[str, Any], param: str
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        chat(tool_tokenizer, **body)

    assert caught.value.param == param
    assert param in caught.value.message


def test_a_message_of_an_earlier_answer_may_be_sent_back_unchanged(tool_tokenizer: Tokenizer) -> None:
    received: dict[str, Any] = {"refusal": None, "annotations": [], "audio": None, "function_call": None}
    answer = {"role": "assistant", "content": "x", "tool_calls": [CALL | {"index": 0}], **received}
    result = {"role": "tool", "tool_call_id": "c", "content": "x", "name": "f"}

    assert chat(tool_tokenizer, messages=[{"role": "user", "content": "x"}, answer, result]).n == 1


def test_the_documentation_lists_the_members_without_effect() -> None:
    page = (ROOT / "docs" / "serving.md").read_text(encoding="utf-8")
    section = page.partition("### Members without effect")[2].partition("\n#")[0]

    sets = (
        without_effect.BODY,
        without_effect.MESSAGE_BLOCK,
        without_effect.THINKING_BLOCK,
        without_effect.TOOL_MESSAGE,
        without_effect.TOOL_CALL,
        without_effect.JSON_SCHEMA,
    )
    listed = [set(re.findall(r"`(\w+)`", line.split("|")[2])) for line in section.splitlines() if line.startswith("| ")]
    assert [names for names in listed if names] == list(map(set, sets))


def test_an_unknown_option_is_refused(tokenizer: Tokenizer) -> None:
    with pytest.raises(InvalidRequest, match="max_token") as caught:
        chat(tokenizer, max_token=5)
    assert (caught.value.param, caught.value.code) == ("max_token", "unknown_parameter")


@pytest.mark.parametrize(
    ("name", "value", "expected_message"),
    [
        ("temperature", 2.1, r"\[0, 2\], got 2.1"),
        ("temperature", "hot", r"\[0, 2\], got the string 'hot'"),
        ("temperature", True, r"\[0, 2\], got true"),
        ("temperature", float("nan"), r"\[0, 2\], got nan"),
        ("top_p", 0, r"\(0, 1\], got 0"),
        ("top_p", 1.5, r"\(0, 1\], got 1.5"),
        ("min_p", -0.1, r"\[0, 1\], got -0.1"),
        ("top_k", -2, "at least -1, got -2"),
        ("top_k", 1.5, "at least -1, got 1.5"),
        ("n", 0, "at least 1, got 0"),
        ("max_tokens", 0, "at least 1, got 0"),
        ("max_completion_tokens", -1, "at least 1, got -1"),
        ("seed", 2**64, "got 18446744073709551616"),
        ("seed", 1.5, "got 1.5"),
        ("stop", ["a"] * 17, "at most 16"),
        ("stop", [""], "1 to 256 characters, got the string ''"),
        ("min_tokens", 10_000, "0..79, got 10000"),  # the prompt takes 21 of the context's 100 tokens
        ("repetition_penalty", 0, r"\(0, 10\], got 0"),
        ("presence_penalty", 2.5, r"\[-2, 2\], got 2.5"),
        ("frequency_penalty", -3, r"\[-2, 2\], got -3"),
        ("logit_bias", [1], "a JSON object, got a list"),
        ("logit_bias", {"x": 1}, "token ids in 0..258 for keys, got 'x'"),
        ("logit_bias", {"259": 1}, "token ids in 0..258 for keys, got '259'"),
        ("logit_bias", {"-1": 1}, "token ids in 0..258 for keys, got '-1'"),
        ("logit_bias", {str(i): 1 for i in range(1025)}, "1024 tokens, got 1025"),
        ("stop", 5, "got 5"),
        ("stop_token_ids", ["a"], "list of at most 1024 token ids"),
        ("stream", "yes", "true or false, got the string 'yes'"),
        ("logprobs", 3, "true or false, got 3"),
        ("top_logprobs", 21, "0..20, got 21"),
        ("top_logprobs", 2, "needs logprobs to be true"),
        ("stream_options", {"include_usage": True}, "needs stream to be true"),
        ("model", 5, "a string, got 5"),
        ("messages", [], "at least one message, got an empty list"),
        ("messages", "hi", "got the string 'hi'"),
        ("chat_template_kwargs", [], "a JSON object, got a list"),
    ],
)
def test_the_error_for_an_invalid_value_states_the_rule_and_the_value(
    tokenizer: Tokenizer, name: str, value: Any, expected_message: str
) -> None:
    with pytest.raises(InvalidRequest, match=expected_message) as caught:
        chat(tokenizer, **{name: value})
    assert (caught.value.param, caught.value.code, caught.value.status) == (name, "invalid_value", 400)


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ("hi", "messages[1]"),
        ({"role": "wizard", "content": "x"}, "messages[1].role"),
        ({"content": "x"}, "messages[1].role"),
        ({"role": "user"}, "messages[1].content"),
        ({"role": "user", "content": 5}, "messages[1].content"),
        ({"role": "user", "content": []}, "messages[1].content"),
        ({"role": "user", "content": [{"type": "image_url", "image_url": {}}]}, "messages[1].content[0]"),
        ({"role": "user", "content": ["x"]}, "messages[1].content[0]"),
        ({"role": "function", "content": "x"}, "messages[1]"),
        ({"role": "tool", "content": "x"}, "messages[1].tool_call_id"),
        ({"role": "assistant", "tool_calls": "x"}, "messages[1].tool_calls"),
        ({"role": "user", "content": "x", "tool_calls": [{}]}, "messages[1].tool_calls"),
        ({"role": "assistant", "tool_calls": [{}]}, "messages[1].tool_calls[0].function"),
        ({"role": "assistant", "tool_calls": [{"function": {}}]}, "messages[1].tool_calls[0].function.name"),
    ],
)
def test_the_error_for_an_invalid_message_names_its_path(tokenizer: Tokenizer, message: Any, param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        chat(tokenizer, messages=[{"role": "user", "content": "x"}, message])
    assert caught.value.param == param


@pytest.mark.parametrize("prompt", [None, "", [], [[]], [-1], [10**6], [1.5], [True], ["a", 1], {}, 5])
def test_an_invalid_prompt_is_refused(tokenizer: Tokenizer, prompt: Any) -> None:
    with pytest.raises(InvalidRequest) as caught:
        complete(tokenizer, prompt=prompt)
    assert caught.value.param == "prompt"


def test_text_with_a_lone_surrogate_is_refused(tokenizer: Tokenizer) -> None:
    with pytest.raises(InvalidRequest, match="surrogate"):
        complete(tokenizer, prompt="a\ud800")
    with pytest.raises(InvalidRequest, match="surrogate"):
        chat(tokenizer, messages=[{"role": "user", "content": "a\ud800"}])


def test_the_maximum_number_of_choices_applies_to_all_prompts_together(tokenizer: Tokenizer) -> None:
    with pytest.raises(InvalidRequest, match="at most 16, got 2 times 9"):
        complete(tokenizer, prompt=["x"] * 9, n=2)
