"""The text, log probabilities and statistics of an answer do not depend on how engine steps group its tokens."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.openai.answer import Answer, AnswerLogprob, AnswerStream
from engine.openai.responses import chat_logprobs, merged_stats, metrics_block, text_logprobs
from engine.request import FinishReason, SpeculationStats, TokenLogprob
from tests.engine.test_text import BYTE_LEVEL, pieces_of

END = 0  # BYTE_LEVEL's end-of-sequence token


def logprobs_of(ids: Sequence[int]) -> list[TokenLogprob]:
    return [TokenLogprob(token, -0.25 * index, ((token, -0.25 * index),)) for index, token in enumerate(ids)]


def answer_in_steps(ids: Sequence[int], sizes: Sequence[int], reason: FinishReason, stop: Sequence[str]) -> Answer:
    """Returns the answer with the tokens `ids`. `sizes`: the number of tokens that each engine step adds."""
    stream = AnswerStream(BYTE_LEVEL, stop=stop, logprobs=True)
    pieces, start, text = pieces_of(ids, sizes), 0, ""
    logprobs: list[AnswerLogprob] = []
    for number, piece in enumerate(pieces):
        last = number == len(pieces) - 1
        step = stream.push(piece, logprobs_of(ids)[start : start + len(piece)], reason if last else None)
        text, logprobs, start = text + step.text, [*logprobs, *step.logprobs], start + len(piece)
    answer = stream.answer()
    assert (answer.text, answer.logprobs) == (text, tuple(logprobs))  # the streamed parts add up to the answer
    return answer


@settings(deadline=None)
@given(
    st.text("abc é漢\n", min_size=1, max_size=12),
    st.lists(st.integers(1, 4), min_size=60, max_size=60),
    st.sampled_from([FinishReason.STOP, FinishReason.LENGTH]),
    st.lists(st.text("abc é", min_size=1, max_size=3), max_size=2),
)
def test_an_answer_does_not_depend_on_how_steps_group_its_tokens(
    text: str, sizes: list[int], reason: FinishReason, stop: list[str]
) -> None:
    ids = [*BYTE_LEVEL.encode(text), END]

    in_steps = answer_in_steps(ids, sizes, reason, stop)

    assert in_steps == answer_in_steps(ids, [len(ids)], reason, stop)
    assert in_steps == answer_in_steps(ids, [1] * len(ids), reason, stop)


def test_the_token_that_ends_an_answer_is_counted_but_not_part_of_the_text() -> None:
    ids = [*BYTE_LEVEL.encode("xy"), *BYTE_LEVEL.encode("c")]  # "c" is a stop token that has text

    answer = answer_in_steps(ids, [3], FinishReason.STOP, ())

    assert (answer.text, answer.num_tokens, answer.finish_reason) == ("xy", 3, FinishReason.STOP)
    assert answer.logprobs is not None
    assert len(answer.logprobs) == 2


def test_a_stop_string_in_the_last_step_sets_the_finish_reason_to_stop() -> None:
    answer = answer_in_steps(BYTE_LEVEL.encode("x y z"), [5], FinishReason.LENGTH, [" "])

    assert (answer.text, answer.num_tokens, answer.finish_reason) == ("x", 2, FinishReason.STOP)


def test_only_tokens_before_the_stop_string_have_log_probabilities() -> None:
    answer = answer_in_steps(BYTE_LEVEL.encode("xyzzy!"), [2, 2, 2], FinishReason.LENGTH, ["zz"])

    assert answer.logprobs is not None
    assert text_logprobs(answer.logprobs, BYTE_LEVEL)["tokens"] == ["x", "y"]


def test_log_probabilities_have_openais_chat_shape() -> None:
    answer = answer_in_steps(BYTE_LEVEL.encode("xé"), [1, 1], FinishReason.LENGTH, ())

    assert answer.logprobs is not None
    assert chat_logprobs(answer.logprobs, BYTE_LEVEL) == {
        "content": [
            {
                "token": "x",
                "logprob": 0.0,
                "bytes": [120],
                "top_logprobs": [{"token": "x", "logprob": 0.0, "bytes": [120]}],
            },
            {
                "token": "é",
                "logprob": -0.25,
                "bytes": [195, 169],
                "top_logprobs": [{"token": "é", "logprob": -0.25, "bytes": [195, 169]}],
            },
        ],
        "refusal": None,
    }


def test_log_probabilities_have_openais_completion_shape() -> None:
    answer = answer_in_steps(BYTE_LEVEL.encode("xéy"), [3], FinishReason.LENGTH, ())

    assert answer.logprobs is not None
    assert text_logprobs(answer.logprobs, BYTE_LEVEL) == {
        "tokens": ["x", "é", "y"],
        "token_logprobs": [0.0, -0.25, -0.5],
        "top_logprobs": [{"x": 0.0}, {"é": -0.25}, {"y": -0.5}],
        "text_offset": [0, 1, 2],
    }


def test_a_log_probability_of_minus_infinity_is_returned_as_minus_9999() -> None:
    stream = AnswerStream(BYTE_LEVEL, logprobs=True)
    (token,) = BYTE_LEVEL.encode("x")
    stream.push([token], [TokenLogprob(token, float("-inf"), ())], FinishReason.LENGTH)

    assert chat_logprobs(stream.answer().logprobs or (), BYTE_LEVEL)["content"][0]["logprob"] == -9999.0


@pytest.mark.parametrize(
    ("num_spec_tokens", "accepted", "histogram"),
    [
        pytest.param(4, (1,), [0, 1, 0, 0, 0], id="deeper than accepted"),
        pytest.param(2, (), [0, 0, 0], id="no verification"),
        pytest.param(0, (0, 0), [2], id="no drafter"),
        pytest.param(1, (0, 3), [1, 0, 0, 1], id="a deeper drafter replaced the first one"),
    ],
)
def test_the_histogram_has_an_entry_for_every_number_of_tokens_that_can_be_accepted(
    num_spec_tokens: int, accepted: tuple[int, ...], histogram: list[int]
) -> None:
    stats = SpeculationStats(num_spec_tokens=num_spec_tokens)
    for number in accepted:
        stats.record(drafted=number, accepted=number)

    statistics = metrics_block(stats)["speculative_decoding"]

    assert statistics["acceptance_histogram"] == histogram
    assert statistics["num_spec_tokens"] == len(histogram) - 1


def test_speculation_statistics_of_several_choices_are_merged() -> None:
    first, second = SpeculationStats(num_spec_tokens=3), SpeculationStats(num_spec_tokens=5)
    first.record(drafted=3, accepted=1)
    second.record(drafted=5, accepted=4)
    second.record(drafted=0, accepted=0)

    assert metrics_block(merged_stats([first, second])) == {
        "speculative_decoding": {
            "mean_acceptance_length": pytest.approx(1 + 5 / 3, abs=1e-4),
            "draft_acceptance_rate": 0.625,
            "acceptance_histogram": [1, 1, 0, 0, 1, 0],
            "num_spec_steps": 3,
            "num_accepted_draft_tokens": 5,
            "num_draft_tokens": 8,
            "num_spec_tokens": 5,
        }
    }
