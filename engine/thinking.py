"""The reasoning trace that a model writes before its answer, between two marker tokens.

    prompt ─▶ BEFORE ─ first token is `begin` ─▶ THINKING ─ `end` ─▶ ANSWERING
       │         └──────── any other first token ───────────────────────▲
       └─ the template has written `begin` ─▶ THINKING

In gpt-oss's format, Harmony, every message has a header that names its channel. The answer is the message in the
channel `final`, and all text before it belongs to the trace:

    <|start|>assistant<|channel|>analysis<|message|> ... <|end|><|start|>assistant<|channel|>final<|message|> ...
    └──── prompt ────┘└─ THINKING ──────────────────────────────────────────────────────────────────────────┘└ ANSWERING

The phase depends only on the tokens of the generated text. A grammar that begins after the trace, and a budget that
ends the trace, therefore constrain the same tokens with and without drafts.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto

import numpy as np
from numpy.typing import NDArray

from engine.grammars.grammar import Constraint

# Markers of Qwen3, DeepSeek-R1, GLM and most others; Seed-OSS; Magistral; Command A Reasoning.
_MARKERS = (
    ("<think>", "</think>"),
    ("<seed:think>", "</seed:think>"),
    ("[THINK]", "[/THINK]"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
)
_HARMONY = ("<|start|>", "<|end|>", "<|channel|>", "<|message|>")


@dataclass(frozen=True, slots=True)
class Channels:
    """Token ids of Harmony's headers. A channel's name is between `channel` and `message`."""

    channel: int
    message: int
    final: tuple[int, ...]  # token ids of the name of the answer's channel


@dataclass(frozen=True, slots=True)
class ThinkMarkers:
    """Token ids of the markers. With channels, `begin` and `end` are the tokens that begin and end every message."""

    begin: int
    end: int
    channels: Channels | None = None


def find_markers(
    template: str, added_tokens: Mapping[str, int], encode: Callable[[str], Sequence[int]]
) -> ThinkMarkers | None:
    """Returns the markers that occur in the chat template and are added tokens of the vocabulary, or None.

    encode: returns the token ids of a text, without special tokens.
    """
    for begin, end in _MARKERS:
        if (begin in template or end in template) and begin in added_tokens and end in added_tokens:
            return ThinkMarkers(added_tokens[begin], added_tokens[end])
    if "<|channel|>analysis<|message|>" in template and all(token in added_tokens for token in _HARMONY):
        start_id, end_id, channel_id, message_id = (added_tokens[token] for token in _HARMONY)
        return ThinkMarkers(start_id, end_id, Channels(channel_id, message_id, tuple(encode("final"))))
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Thinking:
    """The markers and the limit of the reasoning trace of one answer."""

    markers: ThinkMarkers
    opened: bool  # whether the prompt ends with `begin` or, with channels, within a header
    # maximum number of tokens between the markers, after which the trace is ended; not supported with channels
    budget: int | None = None

    def start(self) -> "Phases":
        return Phases(self)


class Phase(Enum):
    BEFORE = auto()
    THINKING = auto()
    ANSWERING = auto()


class Phases:
    """The phase of a generated text after some of its tokens."""

    __slots__ = ("_header", "_thinking", "is_marker", "num_tokens", "phase")

    def __init__(self, thinking: Thinking) -> None:
        self._thinking = thinking
        self.phase = Phase.THINKING if thinking.opened else Phase.BEFORE
        self.num_tokens = 0  # number of tokens of the trace, including its markers
        self.is_marker = False  # whether the last token of the trace is a marker or part of a header
        self._header: list[int] | None = []  # the last name of the current header; None within a message

    @property
    def num_left(self) -> float:
        """Number of tokens that the trace may still have before its end marker; infinite without a limit."""
        if self._thinking.budget is None or self.phase is not Phase.THINKING:
            return math.inf
        return self._thinking.budget - self.num_tokens + (not self._thinking.opened)

    def accept(self, token: int) -> Phase:
        """Adds a token. Returns the phase to which it belongs; markers belong to the trace."""
        markers = self._thinking.markers
        if self.phase is Phase.BEFORE:
            self.phase = Phase.THINKING if token == markers.begin else Phase.ANSWERING
            self.num_tokens, self.is_marker = int(self.phase is Phase.THINKING), True
            return self.phase
        if self.phase is Phase.ANSWERING:
            return Phase.ANSWERING
        self.num_tokens += 1
        if markers.channels is not None:
            self._accept_in_channels(token, markers, markers.channels)
            return Phase.THINKING
        self.is_marker = token in (markers.begin, markers.end)
        if token == markers.end:
            self.phase = Phase.ANSWERING
        return Phase.THINKING

    def _accept_in_channels(self, token: int, markers: ThinkMarkers, channels: Channels) -> None:
        self.is_marker = self._header is not None or token in (markers.begin, markers.end, channels.channel)
        if token in (markers.begin, channels.channel):
            self._header = []
        elif self._header is not None and token == channels.message:
            # a content type may follow the name
            is_final = tuple(self._header[: len(channels.final)]) == channels.final
            self.phase, self._header = Phase.ANSWERING if is_final else Phase.THINKING, None
        elif self._header is not None:
            self._header.append(token)


class ThinkingConstraint:
    """A `Constraint` that ends the trace when its budget is spent, and applies a grammar to the answer.

    Once the budget is spent, only the end marker is allowed. If there is a grammar, the trace must not contain tokens
    that would end the whole text.
    """

    def __init__(
        self, thinking: Thinking, grammar: Constraint | None, *, end_token_ids: Iterable[int], vocab_size: int
    ) -> None:
        self._thinking = thinking
        self._grammar = grammar
        self._all = np.ones(vocab_size, np.bool_)
        self._within_trace = self._all.copy()
        if grammar is not None:
            self._within_trace[[token for token in end_token_ids if token < vocab_size]] = False
        self._restart()

    @property
    def num_accepted(self) -> int:
        return self._num_accepted

    def follow(self, answer: Sequence[int]) -> None:
        self._restart()
        for token in answer:
            self.accept(token)

    def allowed(self) -> NDArray[np.bool_]:
        markers, phase = self._thinking.markers, self._phases.phase
        if phase is Phase.THINKING and self._phases.num_left > 0:
            return self._within_trace
        if phase is Phase.THINKING:
            return _only(markers.end, len(self._all))
        if self._grammar is None:
            return self._all
        allowed = self._grammar.allowed()
        return allowed if phase is Phase.ANSWERING else allowed | _only(markers.begin, len(allowed))

    def accept(self, token: int) -> None:
        self._num_accepted += 1
        if self._phases.accept(token) is Phase.ANSWERING and self._grammar is not None:
            self._grammar.accept(token)

    def allowed_nodes(self, tokens: Sequence[int], parents: Sequence[int]) -> list[int]:
        """Returns the nodes that may be verified.

        Within a trace, only the budget removes nodes here. Verification rejects other tokens that are not allowed.
        """
        if self._phases.phase is Phase.ANSWERING and self._grammar is not None:
            return self._grammar.allowed_nodes(tokens, parents)
        num_left = {-1: self._phases.num_left}  # after each kept node
        for node, (token, parent) in enumerate(zip(tokens, parents, strict=True)):
            if token == self._thinking.markers.end and parent in num_left:
                num_left[node] = math.inf
            elif num_left.get(parent, 0) > 0:
                num_left[node] = num_left[parent] - 1
        return list(num_left)[1:]

    def _restart(self) -> None:
        self._phases = self._thinking.start()
        if self._grammar is not None:
            self._grammar.follow([])
        self._num_accepted = 0


def _only(token: int, vocab_size: int) -> NDArray[np.bool_]:
    allowed = np.zeros(vocab_size, np.bool_)
    allowed[token] = True
    return allowed
