"""Separates the trace of a reasoning model from its answer.

A chat completion has the trace as `reasoning_content`, which DeepSeek's API, SGLang and vLLM have introduced, and the
text after it as `content`. With `separate_reasoning: false`, as in SGLang, the trace remains part of the content.
"""

from collections.abc import Sequence

from engine.text import TextStream
from engine.thinking import Phase, Thinking
from engine.tokenizer import Tokenizer

_MAX_TOKENS_AFTER_MARKER = 8  # templates write at most some white space after the marker that opens a trace


def parse_thinking(prompt: Sequence[int], tokenizer: Tokenizer) -> Thinking | None:
    """Returns where the trace of an answer to a rendered chat is; None for models without think markers."""
    markers = tokenizer.think_markers
    if markers is None:
        return None
    tail = list(prompt[-_MAX_TOKENS_AFTER_MARKER:])
    after = tail[len(tail) - tail[::-1].index(markers.begin) :] if markers.begin in tail else None
    opened = after is not None and not tokenizer.decode(after, skip_special_tokens=False).strip()
    return Thinking(markers=markers, opened=opened)


class ReasoningStream:
    """The trace of one answer. Its text has no markers and is otherwise as the model wrote it, as in vLLM."""

    def __init__(self, tokenizer: Tokenizer, thinking: Thinking) -> None:
        self._markers = (thinking.markers.begin, thinking.markers.end)
        self._phases = thinking.start()
        self._stream = TextStream(tokenizer)

    @property
    def text(self) -> str:
        return self._stream.text

    @property
    def num_tokens(self) -> int:
        """Number of tokens of the trace, including its markers."""
        return self._phases.num_tokens

    def push(self, token_ids: Sequence[int]) -> tuple[str, int]:
        """Returns the new text of the trace, and how many of the ids belong to the trace; the others follow it."""
        count = 0
        while count < len(token_ids) and self._phases.phase is not Phase.ANSWERING:
            count += self._phases.accept(token_ids[count]) is Phase.THINKING
        text = self._stream.push([token for token in token_ids[:count] if token not in self._markers])
        ended = self._phases.phase is Phase.ANSWERING
        return text + (self._stream.finish() if ended and count else ""), count

    def finish(self) -> str:
        """Ends an answer that may have ended within its trace. Returns text that was held back."""
        return self._stream.finish()
