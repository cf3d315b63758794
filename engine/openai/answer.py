"""Builds one choice of a response from the engine's step outputs: text, log-probabilities and finish reason.

With speculation, a step returns several tokens, and a stop string may end at any of them. The content of an `Answer`,
including its number of tokens, depends only on the token ids and not on how the steps group them.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from engine.openai.acceptance import Part, PartStream
from engine.openai.reasoning import ReasoningStream
from engine.prediction import PredictionFollower
from engine.request import FinishReason, TokenLogprob
from engine.text import TextStream
from engine.thinking import Thinking
from engine.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class AnswerLogprob:
    """A token's log-probability, and the index of the answer's character at which the token's text begins."""

    token: TokenLogprob
    text_offset: int
    in_trace: bool = False  # whether the token belongs to a separated reasoning trace, whose tokens have no offsets


@dataclass(frozen=True, slots=True)
class PredictionUsage:
    """accepted: number of predicted tokens that are in the answer. rejected: number of the other predicted tokens."""

    accepted: int
    rejected: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """The new text and log-probabilities of one step."""

    reasoning: str = ""  # new text of the reasoning trace, which precedes `text`
    text: str
    logprobs: tuple[AnswerLogprob, ...]
    finish_reason: FinishReason | None
    token_ids: tuple[int, ...] = ()  # token ids of this step, up to the token that ended the answer
    stop_string: str | None = None  # the stop string that ended the answer
    reasoning_parts: tuple[Part, ...] = ()  # of `reasoning`; only if `AnswerStream` has `acceptance`
    text_parts: tuple[Part, ...] = ()  # of `text`; only if `AnswerStream` has `acceptance`


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    text: str
    logprobs: tuple[AnswerLogprob, ...] | None  # entries of tokens whose text is in `text`; None if not requested
    finish_reason: FinishReason
    token_ids: tuple[int, ...]  # generated tokens, including the one that ended the answer
    reasoning: str | None = None  # the reasoning trace; None if it is not separated from `text`
    num_reasoning_tokens: int = 0
    prediction: PredictionUsage | None = None  # None: the request has no prediction
    stop_string: str | None = None  # the stop string that ended the answer

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)


class AnswerStream:
    """Collects the step outputs of one choice. Once `finish_reason` is set, further outputs have no effect."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        stop: Sequence[str] = (),
        logprobs: bool = False,
        keep: bool = True,
        thinking: Thinking | None = None,
        prediction: Sequence[int] = (),
        acceptance: bool = False,
    ) -> None:
        """
        Args:
            stop: stop strings, which are not searched in a separated trace.
            keep: False if the caller uses each piece at once and never calls `answer`.
            thinking: markers of the reasoning trace to separate from the text; None: no trace is separated.
            prediction: token ids of the request's prediction.
            acceptance: whether pieces say which of their text comes from accepted draft tokens.
        """
        self._keep = keep
        self._trace = None if thinking is None else ReasoningStream(tokenizer, thinking, per_token=acceptance)
        self._stream = TextStream(tokenizer, stop=stop, per_token=logprobs or acceptance)
        self._trace_parts = PartStream(self._trace.stream) if acceptance and self._trace is not None else None
        self._text_parts = PartStream(self._stream) if acceptance else None
        self._wants_logprobs = logprobs
        self._prediction = PredictionFollower(prediction) if prediction else None
        self._waiting: deque[AnswerLogprob] = deque()  # entries of tokens whose text is held back
        self._returned: list[AnswerLogprob] = []
        self._token_ids: list[int] = []
        self._num_without_text = 0  # 1 after a stop token, which counts as a token but has no text
        self.finish_reason: FinishReason | None = None

    @property
    def stopped(self) -> bool:
        """Whether a stop string ended the answer. The caller must then cancel the request in the engine."""
        return self._stream.stopped

    @property
    def num_tokens(self) -> int:
        return self.num_reasoning_tokens + self._stream.num_tokens + self._num_without_text

    @property
    def num_reasoning_tokens(self) -> int:
        return 0 if self._trace is None else self._trace.num_tokens

    @property
    def prediction(self) -> PredictionUsage | None:
        followed = self._prediction
        return None if followed is None else PredictionUsage(followed.num_accepted, followed.num_rejected)

    def push(
        self,
        token_ids: Sequence[int],
        logprobs: Sequence[TokenLogprob] | None,
        finish_reason: FinishReason | None,
        accepted: Sequence[bool] = (),
    ) -> Piece:
        """`accepted`: whether each token is an accepted draft token; required if `acceptance` was requested."""
        if self.finish_reason is not None:
            return Piece(text="", logprobs=(), finish_reason=None)
        num_before = self.num_tokens
        text_ids = token_ids[:-1] if finish_reason is FinishReason.STOP else token_ids
        reasoning, num_thought = ("", 0) if self._trace is None else self._trace.push(text_ids)
        before = self._stream.num_tokens
        text = self._stream.push(text_ids[num_thought:])
        if finish_reason is not None:
            reasoning += "" if self._trace is None else self._trace.finish()
            text += self._stream.finish()
        of_trace: list[AnswerLogprob] = []
        if self._wants_logprobs and logprobs is not None:
            of_trace = [AnswerLogprob(token, 0, in_trace=True) for token in logprobs[:num_thought]]
            starts = self._stream.token_starts[before:]
            self._waiting += [AnswerLogprob(*pair) for pair in zip(logprobs[num_thought:], starts, strict=False)]
        if self.stopped:
            self.finish_reason = FinishReason.STOP
        elif finish_reason is not None:
            self.finish_reason = finish_reason
            self._num_without_text = len(token_ids) - len(text_ids)
        used = tuple(token_ids[: self.num_tokens - num_before])
        if self._keep:
            self._token_ids += used
        if self._prediction is not None:
            for token in used:
                self._prediction.accept(token)
        return Piece(
            reasoning=reasoning,
            text=text,
            logprobs=self._release(of_trace),
            finish_reason=self.finish_reason,
            token_ids=used,
            stop_string=self._stream.stop_string,
            reasoning_parts=self._parts_of_trace(reasoning, accepted),
            text_parts=() if self._text_parts is None else self._text_parts.split(text, accepted[num_thought:]),
        )

    def _parts_of_trace(self, reasoning: str, accepted: Sequence[bool]) -> tuple[Part, ...]:
        if self._trace is None or self._trace_parts is None:
            return ()
        return self._trace_parts.split(reasoning, [accepted[place] for place in self._trace.shown])

    def answer(self) -> Answer:
        assert self.finish_reason is not None
        assert self._keep
        return Answer(
            text=self._stream.text,
            logprobs=tuple(self._returned) if self._wants_logprobs else None,
            finish_reason=self.finish_reason,
            token_ids=tuple(self._token_ids),
            reasoning=None if self._trace is None else self._trace.text,
            num_reasoning_tokens=self.num_reasoning_tokens,
            prediction=self.prediction,
            stop_string=self._stream.stop_string,
        )

    def _release(self, of_trace: list[AnswerLogprob]) -> tuple[AnswerLogprob, ...]:
        """Returns the entries `of_trace`, followed by the waiting entries whose text is at least partly in the answer.

        Returned entries wait no longer. If the answer ended without a stop string, all waiting entries are returned.
        """
        num_characters = len(self._stream.text)
        release_all = self.finish_reason is not None and not self.stopped
        released = of_trace
        while self._waiting and (release_all or self._waiting[0].text_offset < num_characters):
            released.append(self._waiting.popleft())
        if self._keep:
            self._returned += released
        return tuple(released)
