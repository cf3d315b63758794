"""The reasoning trace is separated from the answer by the token ids of the markers, such as `<think>`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.fields import Fields, InvalidRequest
from engine.openai.answer import Answer, AnswerStream
from engine.openai.reasoning import parse_thinking
from engine.openai.requests import ParsedRequest, parse_chat
from engine.request import FinishReason, TokenLogprob
from engine.thinking import ThinkMarkers, find_markers
from engine.tokenizer import Tokenizer
from tests.engine.openai.thinking_model import BEGIN, END, make_thinking_model
from tests.engine.test_text import pieces_of
from tests.tiny_model import make_tiny_model


@pytest.fixture(scope="module", params=[False, True], ids=["ordinary markers", "special markers"])
def tokenizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.load(make_thinking_model(tmp_path_factory.mktemp("model"), special=request.param))


def chat(tokenizer: Tokenizer, content: str = "hi", **body: Any) -> ParsedRequest:
    body = {"messages": [{"role": "user", "content": content}]} | body
    return parse_chat(body, tokenizer=tokenizer, max_seq_len=500)


def answer_in_steps(
    tokenizer: Tokenizer, ids: Sequence[int], sizes: Sequence[int], *, opened: bool = False, stop: Sequence[str] = ()
) -> Answer:
    """Returns the answer with the tokens `ids`, and checks that the streamed pieces add up to this answer.

    sizes: the number of tokens that each engine step adds.
    opened: whether the prompt ends with the begin marker.
    """
    thinking = chat(tokenizer, chat_template_kwargs={"opened": opened}).separated
    stream = AnswerStream(tokenizer, stop=stop, logprobs=True, thinking=thinking)
    steps, start, pieces = pieces_of(ids, sizes), 0, []
    for number, step in enumerate(steps):
        logprobs = [TokenLogprob(token, -0.25 * index, ()) for index, token in enumerate(ids)]
        reason = FinishReason.LENGTH if number == len(steps) - 1 else None
        pieces.append(stream.push(step, logprobs[start : start + len(step)], reason))
        start += len(step)
    answer = stream.answer()
    assert answer.reasoning == "".join(piece.reasoning for piece in pieces)
    assert answer.text == "".join(piece.text for piece in pieces)
    assert answer.logprobs == tuple(entry for piece in pieces for entry in piece.logprobs)
    return answer


def test_the_reasoning_trace_is_separated_from_the_answer(tokenizer: Tokenizer) -> None:
    ids = [BEGIN, *tokenizer.encode("hm, 漢"), END, *tokenizer.encode("yes")]

    answer = answer_in_steps(tokenizer, ids, [1] * len(ids))

    assert (answer.reasoning, answer.text) == ("hm, 漢", "yes")
    assert (answer.num_tokens, answer.num_reasoning_tokens) == (len(ids), len(ids) - 3)
    assert answer.logprobs is not None
    assert len(answer.logprobs) == len(ids)


def test_an_answer_needs_no_begin_marker_if_the_prompt_opens_the_trace(tokenizer: Tokenizer) -> None:
    answer = answer_in_steps(tokenizer, [*tokenizer.encode("hm"), END, *tokenizer.encode("yes")], [4, 4], opened=True)

    assert (answer.reasoning, answer.text) == ("hm", "yes")


def test_an_unfinished_trace_is_not_part_of_the_answers_text(tokenizer: Tokenizer) -> None:
    answer = answer_in_steps(tokenizer, [BEGIN, *tokenizer.encode("hm, yes")], [3, 9])

    assert (answer.reasoning, answer.text) == ("hm, yes", "")


def test_an_answer_without_a_trace_is_content_even_if_it_mentions_a_marker(tokenizer: Tokenizer) -> None:
    answer = answer_in_steps(tokenizer, [*tokenizer.encode("a"), BEGIN, *tokenizer.encode("b")], [1, 1, 1])

    assert (answer.reasoning, answer.text.replace("<think>", ""), answer.num_reasoning_tokens) == ("", "ab", 0)


def test_stop_strings_are_not_searched_in_the_trace(tokenizer: Tokenizer) -> None:
    ids = [BEGIN, *tokenizer.encode("so x, "), END, *tokenizer.encode("y x z")]

    answer = answer_in_steps(tokenizer, ids, [2] * len(ids), stop=["x"])

    assert (answer.reasoning, answer.text, answer.finish_reason) == ("so x, ", "y ", FinishReason.STOP)


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.sampled_from([BEGIN, END, *range(3, 259)]), min_size=1, max_size=20),
    st.lists(st.integers(1, 4), min_size=20, max_size=20),
    st.booleans(),
    st.lists(st.text("ab é", min_size=1, max_size=3), max_size=2),
)
def test_trace_and_answer_do_not_depend_on_how_steps_group_the_tokens(
    tokenizer: Tokenizer, ids: list[int], sizes: list[int], opened: bool, stop: list[str]
) -> None:
    expected = answer_in_steps(tokenizer, ids, [len(ids)], opened=opened, stop=stop)

    assert answer_in_steps(tokenizer, ids, sizes, opened=opened, stop=stop) == expected


def test_only_a_marker_at_the_end_of_the_prompt_opens_a_trace(tokenizer: Tokenizer) -> None:
    def is_opened(content: str = "hi", **variables: Any) -> bool:
        thinking = chat(tokenizer, content, chat_template_kwargs=variables).sampling.thinking
        assert thinking is not None
        return thinking.opened

    assert is_opened(opened=True)
    assert not is_opened()
    assert not is_opened(enable_thinking=False)
    assert not is_opened("what is <think>")
    thinking = parse_thinking(Fields({}), [*tokenizer.encode("a<think>"), *tokenizer.encode("a" * 10)], tokenizer)
    assert thinking is not None
    assert not thinking.opened


def test_with_separate_reasoning_false_the_trace_stays_in_the_content(tokenizer: Tokenizer) -> None:
    parsed = chat(tokenizer, separate_reasoning=False)

    assert parsed.separated is None
    assert parsed.sampling.thinking is not None


def test_the_reasoning_trace_of_an_earlier_answer_is_passed_to_the_template(tokenizer: Tokenizer) -> None:
    earlier: list[dict[str, Any]] = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": None, "reasoning_content": "hm"},
        {"role": "user", "content": "well?"},
    ]

    prompt = chat(tokenizer, messages=earlier).prompt_token_ids

    text = tokenizer.decode(prompt, skip_special_tokens=False)
    assert text == "user:hi\nassistant:<think>hm</think>\nuser:well?\nassistant:"


def test_think_markers_must_be_single_tokens_that_the_template_contains(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    plain = Tokenizer.load(make_tiny_model(tmp_path_factory.mktemp("plain"), "llama", num_layers=1))

    assert plain.think_markers is None
    assert chat(plain).separated is None
    tokens = {"<think>": 7, "</think>": 8}
    others = {"[THINK]": 5, "[/THINK]": 6}
    assert find_markers("x</think>", tokens, plain.encode) == ThinkMarkers(7, 8)
    assert find_markers("[THINK]", tokens | others, plain.encode) == ThinkMarkers(5, 6)
    assert find_markers("x</think>", {"</think>": 8}, plain.encode) is None
    assert find_markers("no marker", tokens, plain.encode) is None


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({}, "user:hi\nassistant:"),
        ({"reasoning_effort": "high"}, "effort=high\nuser:hi\nassistant:"),
        ({"reasoning_effort": "none"}, "effort=none\nuser:hi\nassistant:"),
        ({"enable_thinking": False}, "user:hi\nassistant:<think>\n\n</think>\n\n"),
        ({"chat_template_kwargs": {"opened": True}}, "user:hi\nassistant:<think>\n"),
        ({"chat_template_kwargs": {"enable_thinking": False}, "enable_thinking": True}, "user:hi\nassistant:"),
    ],
)
def test_thinking_options_are_passed_to_the_template(tokenizer: Tokenizer, body: dict[str, Any], expected: str) -> None:
    assert tokenizer.decode(chat(tokenizer, **body).prompt_token_ids, skip_special_tokens=False) == expected


def test_reasoning_effort_none_turns_thinking_off_if_the_template_has_only_enable_thinking(tmp_path: Path) -> None:
    folder = make_thinking_model(tmp_path / "model")
    (folder / "chat_template.jinja").write_text("{% if not enable_thinking %}off{% endif %}")

    switched = Tokenizer.load(folder)

    assert switched.decode(chat(switched, reasoning_effort="none", enable_thinking=True).prompt_token_ids) == "off"
    with pytest.raises(InvalidRequest) as caught:
        chat(switched, reasoning_effort="low")
    assert (caught.value.param, caught.value.code) == ("reasoning_effort", "unsupported_parameter")


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        ({"chat_template_kwargs": {"thinkng": False}}, "chat_template_kwargs.thinkng", "unsupported_parameter"),
        ({"reasoning_effort": "huge"}, "reasoning_effort", "invalid_value"),
        ({"enable_thinking": "no"}, "enable_thinking", "invalid_value"),
        ({"chat_template_kwargs": {"effort_is_bad": True}}, "messages", "chat_template_error"),
    ],
)
def test_invalid_thinking_options_and_errors_of_the_template_have_their_own_codes(
    tokenizer: Tokenizer, body: dict[str, Any], param: str, code: str
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        chat(tokenizer, **body)

    assert (caught.value.param, caught.value.code) == (param, code)


def test_a_model_whose_template_has_no_thinking_switch_refuses_the_option(tmp_path: Path) -> None:
    plain = Tokenizer.load(make_tiny_model(tmp_path / "model", "llama", num_layers=1))

    for body in ({"enable_thinking": True}, {"reasoning_effort": "none"}):
        with pytest.raises(InvalidRequest, match="has no variable") as caught:
            chat(plain, **body)
        assert caught.value.code == "unsupported_parameter"


@pytest.mark.parametrize("opened", [False, True])
def test_the_error_for_a_thinking_budget_without_room_for_an_answer_states_the_largest_budget(
    tokenizer: Tokenizer, opened: bool
) -> None:
    def budget_of(**body: Any) -> int | None:
        thinking = chat(tokenizer, chat_template_kwargs={"opened": opened}, **body).sampling.thinking
        assert thinking is not None
        return thinking.budget

    room = chat(tokenizer, chat_template_kwargs={"opened": opened}).sampling.max_tokens
    num_needed = 2 if opened else 3  # the markers that the model still has to write, and one token of the answer
    assert budget_of(thinking_token_budget=0) == 0
    for limits, most in (({}, room - num_needed), ({"max_tokens": 40}, 40 - num_needed)):
        assert budget_of(thinking_token_budget=most, **limits) == most
        with pytest.raises(InvalidRequest, match=f"is {most + 1}, but .* at most {most} ") as caught:
            budget_of(thinking_token_budget=most + 1, **limits)
        assert (caught.value.param, caught.value.code) == ("thinking_token_budget", "thinking_budget_too_large")


def test_a_thinking_budget_for_a_model_without_think_markers_is_refused(tmp_path: Path) -> None:
    plain = Tokenizer.load(make_tiny_model(tmp_path / "model", "llama", num_layers=1))

    with pytest.raises(InvalidRequest, match="no think markers") as caught:
        chat(plain, thinking_token_budget=5)

    assert caught.value.code == "unsupported_parameter"
