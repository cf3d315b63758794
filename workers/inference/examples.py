"""Examples of an evaluation: the beginnings of three answers, in which the accepted draft tokens are marked.

The examples contain text of the customer. They are therefore a file of their own and no part of the report, which the
database stores and operators read.
"""

from collections.abc import Iterable, Mapping
from itertools import groupby
from typing import Any

from engine.text import TextStream
from engine.tokenizer import Tokenizer
from workers.inference.rows import RowAnswer

MAX_TOKENS = 96  # of an answer
MAX_CHARACTERS = 400  # of a prompt, or of a run of tokens


def examples_of(answers: Iterable[RowAnswer], tokenizer: Tokenizer) -> list[dict[str, Any]]:
    """Returns up to three answers: those with the lowest, the middle and the highest acceptance length.

    An example has `custom_id`, the `prompt` (the last message), `acceptance_length`, `parts` and `is_cut`. The joined
    texts of the parts are the beginning of the answer. In a part, either all tokens or no tokens are `accepted` draft
    tokens.
    """
    first: dict[int, RowAnswer] = {}
    for answer in answers:
        first.setdefault(answer.request.row.number, answer)
    ranked = sorted(first.values(), key=lambda each: each.speculation.mean_acceptance_length)
    chosen = sorted({0, len(ranked) // 2, len(ranked) - 1}) if ranked else []
    return [_example(ranked[place], tokenizer) for place in chosen]


def _example(answer: RowAnswer, tokenizer: Tokenizer) -> dict[str, Any]:
    stream, tokens = TextStream(tokenizer), list(zip(answer.token_ids, answer.accepted, strict=True))[:MAX_TOKENS]
    texts = [(stream.push([token]), accepted) for token, accepted in tokens]
    texts.append((stream.finish(), texts[-1][1] if texts else False))
    parts = [("".join(text for text, _ in run), accepted) for accepted, run in groupby(texts, key=lambda pair: pair[1])]
    return {
        "custom_id": answer.request.row.custom_id,
        "prompt": _last_message(answer.request.row.body)[:MAX_CHARACTERS],
        "acceptance_length": round(answer.speculation.mean_acceptance_length, 4),
        "parts": [{"text": text[:MAX_CHARACTERS], "accepted": accepted} for text, accepted in parts if text],
        "is_cut": answer.num_tokens > MAX_TOKENS,
    }


def _last_message(body: Mapping[str, Any]) -> str:
    """Returns the text of the last message of a chat, or the prompt of a completion; empty if it has only token ids."""
    content = body["messages"][-1].get("content") if "messages" in body else body.get("prompt")
    if isinstance(content, list):
        content = "".join(part.get("text", "") for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else ""
