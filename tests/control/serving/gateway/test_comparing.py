"""What makes the answers of two engines to the same request different."""

import json
from collections.abc import Sequence

from control.serving.gateway.comparing import are_equal


def stream_of(parts: Sequence[tuple[str, bool]], *, with_acceptance: bool = True) -> bytes:
    """Returns a stream with one chunk. Args: parts: texts, and whether each comes from accepted draft tokens."""
    choice = {"index": 0, "delta": {"content": "".join(text for text, _ in parts)}, "finish_reason": None}
    if with_acceptance:
        choice["acceptance"] = [{"text": text, "accepted": accepted} for text, accepted in parts]
    chunks = [{"choices": [choice]}, {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}]
    return b"".join(f"data: {json.dumps(chunk)}\n\n".encode() for chunk in chunks) + b"data: [DONE]\n\n"


def test_answers_are_equal_although_the_speculators_had_other_tokens_accepted() -> None:
    drafted, sampled = stream_of([("the ", True), ("answer", False)]), stream_of([("the answer", False)])

    assert are_equal(drafted, sampled)
    assert are_equal(drafted, stream_of([("the answer", False)], with_acceptance=False))
    assert not are_equal(drafted, stream_of([("the ", True), ("answers", False)]))
