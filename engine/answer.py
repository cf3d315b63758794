"""One choice of an answer, put together from what the engine's steps bring: text, log-probabilities, how it ended.

Speculation brings several tokens a step, and a stop string may be complete in the middle of them. What an `Answer`
holds, its number of tokens included, depends on the ids alone, never on the steps that brought them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from engine.request import FinishReason, TokenLogprob
from engine.text import TextStream
from engine.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class ShownLogprob:
    """A token's log-probability, and at which character of the answer its text begins."""

    token: TokenLogprob
    text_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """What one step lets a reader see."""

    text: str
    logprobs: tuple[ShownLogprob, ...]
    finish_reason: FinishReason | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    text: str
    logprobs: tuple[ShownLogprob, ...] | None  # of the tokens whose text is shown; None where not asked for
    finish_reason: FinishReason
    num_tokens: int  # generated, up to the one that ended the answer, that one included


class AnswerStream:
    """Takes the steps of one request. Once `finish_reason` is set, further steps are without effect."""

    def __init__(
        self, tokenizer: Tokenizer, *, stop: Sequence[str] = (), logprobs: bool = False, keep: bool = True
    ) -> None:
        """`keep`: False for a reader who takes each piece at once and never asks for the `answer`."""
        self._keep = keep
        self._stream = TextStream(tokenizer, stop=stop, per_token=logprobs)
        self._wants_logprobs = logprobs
        self._waiting: list[ShownLogprob] = []  # their text is held back
        self._shown: list[ShownLogprob] = []
        self._num_unspoken = 0  # the stop token
        self.finish_reason: FinishReason | None = None

    @property
    def stopped(self) -> bool:
        """Whether a stop string ended the answer: the engine does not know that and is to be told."""
        return self._stream.stopped

    @property
    def num_tokens(self) -> int:
        return self._stream.num_tokens + self._num_unspoken

    def push(
        self,
        token_ids: Sequence[int],
        logprobs: Sequence[TokenLogprob] | None,
        finish_reason: FinishReason | None,
    ) -> Piece:
        if self.finish_reason is not None:
            return Piece(text="", logprobs=(), finish_reason=None)
        # The token that ends an answer is counted, never shown.
        spoken = token_ids[:-1] if finish_reason is FinishReason.STOP else token_ids
        before = self._stream.num_tokens
        text = self._stream.push(spoken)
        if finish_reason is not None:
            text += self._stream.finish()
        if self._wants_logprobs:
            starts = self._stream.token_starts[before:]
            self._waiting += [ShownLogprob(*pair) for pair in zip(logprobs or (), starts, strict=False)]
        if self.stopped:
            self.finish_reason = FinishReason.STOP
        elif finish_reason is not None:
            self.finish_reason = finish_reason
            self._num_unspoken = len(token_ids) - len(spoken)
        return Piece(text=text, logprobs=self._release(), finish_reason=self.finish_reason)

    def answer(self) -> Answer:
        assert self.finish_reason is not None
        assert self._keep
        return Answer(
            text=self._stream.text,
            logprobs=tuple(self._shown) if self._wants_logprobs else None,
            finish_reason=self.finish_reason,
            num_tokens=self.num_tokens,
        )

    def _release(self) -> tuple[ShownLogprob, ...]:
        """Those whose text is shown, at least in part; at an end that no stop string cut, all."""
        num_characters = len(self._stream.text)
        if self.finish_reason is not None and not self.stopped:
            released = self._waiting
        else:
            released = [waiting for waiting in self._waiting if waiting.text_offset < num_characters]
        self._waiting = self._waiting[len(released) :]  # offsets never fall, so those released come first
        if self._keep:
            self._shown += released
        return tuple(released)
