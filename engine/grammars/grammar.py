"""The grammar of a request, and the constraint by which it limits the tokens of an answer.

    Grammar ─ GrammarCompiler.compile ─▶ Grammar with `compiled` ─ start, once per answer ─▶ Constraint

Compilation needs the tokenizer and takes seconds for some grammars, so it happens while a request is parsed and not in
the engine.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

MAX_GRAMMAR_BYTES = 64 * 1024


class GrammarKind(StrEnum):
    """The language of `Grammar.source`."""

    JSON_SCHEMA = "json_schema"  # a JSON Schema, as JSON text
    JSON_OBJECT = "json_object"  # any JSON object; the source is empty
    REGEX = "regex"  # must match the whole answer
    EBNF = "ebnf"  # in the GBNF notation of llama.cpp; the rule `root` matches the whole answer
    CHOICE = "choice"  # a JSON list of strings; the answer is one of them
    STRUCTURAL_TAG = "structural_tag"  # JSON text: free text with constrained parts between tags, for tools


class Constraint(Protocol):
    """State of an answer in its grammar. It depends only on the answer's tokens and can be recomputed from them."""

    @property
    def num_accepted(self) -> int:
        """Number of tokens of the answer so far."""

    def follow(self, answer: Sequence[int]) -> None:
        """Moves to the state after these tokens."""

    def allowed(self) -> NDArray[np.bool_]:
        """Returns the mask of allowed next tokens, [vocabulary] bool. At least one token is allowed.

        Once the grammar is complete, only end-of-sequence tokens are allowed. Raises: GrammarTooSlow
        """

    def accept(self, token: int) -> None:
        """Adds the next token of the answer."""

    def allowed_nodes(self, tokens: Sequence[int], parents: Sequence[int]) -> list[int]:
        """Returns the draft nodes that the grammar allows, ascending. `parents` as in engine.draft.Draft."""


class CompiledGrammar(Protocol):
    def start(self) -> Constraint: ...


@dataclass(frozen=True, slots=True)
class Grammar:
    """Grammars with equal kind and source are equal, whether compiled or not."""

    kind: GrammarKind
    source: str = ""
    compiled: CompiledGrammar | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        size = len(self.source.encode())
        if size > MAX_GRAMMAR_BYTES:
            raise ValueError(f"a grammar may have at most {MAX_GRAMMAR_BYTES} bytes, got {size}")
        if (self.kind is GrammarKind.JSON_OBJECT) != (not self.source):
            raise ValueError(f"json_object takes no source, all others need one, got {self.kind} {self.source!r:.40}")

    def start(self) -> Constraint:
        """Returns the constraint of a new answer. Raises: ValueError: the grammar is not compiled."""
        if self.compiled is None:
            raise ValueError(f"the grammar must be compiled before the engine gets it, got an uncompiled {self.kind}")
        return self.compiled.start()
