"""Thinking: the trace that a reasoning model writes before its answer, between two marker tokens.

    prompt ─▶ BEFORE ─ first token is `begin` ─▶ THINKING ─ `end` ─▶ ANSWERING
       │         └──────── any other first token ───────────────────────▲
       └─ the template has written `begin` ─▶ THINKING

The phase depends only on the tokens of the generated text. So a grammar that begins after the trace, and a budget that
ends it, constrain the same tokens with and without drafts.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto

import numpy as np
from numpy.typing import NDArray

from engine.grammars.grammar import Constraint

# Of Qwen3, DeepSeek-R1, GLM and most others; Seed-OSS; Magistral; Command A Reasoning.
_MARKERS = (
    ("<think>", "</think>"),
    ("<seed:think>", "</seed:think>"),
    ("[THINK]", "[/THINK]"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
)


@dataclass(frozen=True, slots=True)
class ThinkMarkers:
    begin: int  # token ids
    end: int


def find_markers(template: str, added_tokens: Mapping[str, int]) -> ThinkMarkers | None:
    """Returns the markers that the chat template names and of which each is one added token of the vocabulary."""
    for begin, end in _MARKERS:
        if (begin in template or end in template) and begin in added_tokens and end in added_tokens:
            return ThinkMarkers(added_tokens[begin], added_tokens[end])
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Thinking:
    """Where the trace of one answer is."""

    markers: ThinkMarkers
    opened: bool  # whether the prompt ends with `begin`

    def start(self) -> "Phases":
        return Phases(self)


class Phase(Enum):
    BEFORE = auto()
    THINKING = auto()
    ANSWERING = auto()


class Phases:
    """The phase of a generated text after some of its tokens."""

    __slots__ = ("_markers", "num_tokens", "phase")

    def __init__(self, thinking: Thinking) -> None:
        self._markers = thinking.markers
        self.phase = Phase.THINKING if thinking.opened else Phase.BEFORE
        self.num_tokens = 0  # of the trace, including its markers

    def accept(self, token: int) -> Phase:
        """Adds a token. Returns the phase to which it belongs; markers belong to the trace."""
        if self.phase is Phase.BEFORE:
            self.phase = Phase.THINKING if token == self._markers.begin else Phase.ANSWERING
            self.num_tokens += self.phase is Phase.THINKING
            return self.phase
        if self.phase is Phase.ANSWERING:
            return Phase.ANSWERING
        self.num_tokens += 1
        if token == self._markers.end:
            self.phase = Phase.ANSWERING
        return Phase.THINKING


class GrammarAfterThinking:
    """A `Constraint` that applies a grammar to the answer.

    Within the trace all tokens are allowed, except those that would end the text before the answer has begun.
    """

    def __init__(self, thinking: Thinking, grammar: Constraint, *, end_token_ids: Iterable[int]) -> None:
        self._thinking = thinking
        self._grammar = grammar
        self._end_token_ids = sorted(end_token_ids)
        self._free: NDArray[np.bool_] | None = None  # the mask within the trace, once it is needed
        self._restart()

    @property
    def num_accepted(self) -> int:
        return self._num_accepted

    def follow(self, answer: Sequence[int]) -> None:
        self._restart()
        for token in answer:
            self.accept(token)

    def allowed(self) -> NDArray[np.bool_]:
        phase = self._phases.phase
        if phase is Phase.ANSWERING:
            return self._grammar.allowed()
        if phase is Phase.BEFORE:
            allowed = self._grammar.allowed().copy()
            allowed[self._thinking.markers.begin] = True
            return allowed
        if self._free is None:
            self._free = np.ones_like(self._grammar.allowed())
            self._free[[token for token in self._end_token_ids if token < len(self._free)]] = False
        return self._free

    def accept(self, token: int) -> None:
        self._num_accepted += 1
        if self._phases.accept(token) is Phase.ANSWERING:
            self._grammar.accept(token)

    def allowed_nodes(self, tokens: Sequence[int], parents: Sequence[int]) -> list[int]:
        """Before the answer all nodes are kept, and verification drops those that are not allowed."""
        if self._phases.phase is Phase.ANSWERING:
            return self._grammar.allowed_nodes(tokens, parents)
        return list(range(len(tokens)))

    def _restart(self) -> None:
        self._phases = self._thinking.start()
        self._grammar.follow([])
        self._num_accepted = 0
