"""The parts of an answer's text add up to the text, and each character has the kind of the token that completes it."""

from collections.abc import Sequence
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from engine.openai.answer import AnswerStream
from engine.request import FinishReason, StepOutput
from engine.text import TextStream
from engine.tokenizer import Tokenizer
from tests.engine.test_text import ids_and_splits, pieces_of

Marked = list[tuple[str, bool]]  # characters, and whether they come from accepted draft tokens


def reference(tokenizer: Tokenizer, ids: Sequence[int], accepted: Sequence[bool]) -> Marked:
    """Decodes the tokens one by one. Text that the end of the answer settles belongs to the last token."""
    stream = TextStream(tokenizer)
    flagged = zip(ids, accepted, strict=True)
    marked = [(character, flag) for token, flag in flagged for character in stream.push([token])]
    return marked + [(character, accepted[-1]) for character in stream.finish()]


@settings(deadline=None)
@given(ids_and_splits(), st.lists(st.text("abc é", min_size=1, max_size=3), max_size=2))
def test_each_character_has_the_kind_of_the_token_that_completes_it(
    case: tuple[Tokenizer, list[int], list[int]], stop: list[str]
) -> None:
    tokenizer, ids, sizes = case
    stream, plain = AnswerStream(tokenizer, stop=stop, acceptance=True), AnswerStream(tokenizer, stop=stop)
    marked: Marked = []
    accepted: list[bool] = []
    plain_text = ""
    steps = pieces_of(ids, sizes)
    for number, step in enumerate(steps):
        reason = FinishReason.LENGTH if number == len(steps) - 1 else None
        flags = StepOutput("r", tuple(step), None, reason, None).accepted
        piece, other = stream.push(step, None, reason, flags), plain.push(step, None, reason)

        assert "".join(part.text for part in piece.text_parts) == piece.text
        assert (piece.token_ids, piece.finish_reason) == (other.token_ids, other.finish_reason)
        assert all(one.accepted != two.accepted for one, two in pairwise(piece.text_parts))
        assert other.text_parts == ()
        plain_text += other.text
        marked += [(character, part.accepted) for part in piece.text_parts for character in part.text]
        accepted += flags

    assert "".join(character for character, _ in marked) == plain_text
    expected = reference(tokenizer, ids, accepted) if ids else []
    assert marked == expected[: len(marked)]
    assert stream.stopped or len(marked) == len(expected)
