"""What an answer must look like, as the caller spells it, and how the engine holds an answer to it.

    Grammar ─ engine.grammars.GrammarCompiler.compile ─ Grammar with `compiled` ─ start, once per answer ─ Constraint

Compiling takes the tokenizer and, for some grammars, seconds: it is done where a request is read, never in the engine.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

MAX_GRAMMAR_BYTES = 64 * 1024


class GrammarKind(StrEnum):
    """The language that `Grammar.source` is written in."""

    JSON_SCHEMA = "json_schema"  # a JSON Schema, as JSON text
    JSON_OBJECT = "json_object"  # any JSON object; the source is empty
    REGEX = "regex"  # the whole answer matches it
    EBNF = "ebnf"  # GBNF, as llama.cpp writes it; the rule `root` is the answer
    CHOICE = "choice"  # a JSON list of strings: the answer is one of them
    STRUCTURAL_TAG = "structural_tag"  # free text with constrained parts between tags, as JSON text; used for tools


class Constraint(Protocol):
    """One answer's place in its grammar. Derived from the answer's tokens alone, so nothing is lost with it."""

    def follow(self, answer: Sequence[int]) -> None:
        """Goes to the place after these tokens. Cheap if they are those that were accepted."""

    def allowed(self) -> NDArray[np.bool_]:
        """[vocabulary]: what may come next; when the grammar is complete, end-of-sequence alone. Never nothing.

        Raises: GrammarTooSlow
        """

    def accept(self, token: int) -> None:
        """The next token of the answer."""

    def fitting(self, tokens: Sequence[int], parents: Sequence[int]) -> list[int]:
        """Which nodes of a draft under this place the grammar allows, ascending. `parents` as in engine.draft.Draft."""


class CompiledGrammar(Protocol):
    def start(self) -> Constraint: ...


@dataclass(frozen=True, slots=True)
class Grammar:
    """Equal to any other of the same source, compiled or not."""

    kind: GrammarKind
    source: str = ""
    compiled: CompiledGrammar | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        size = len(self.source.encode())
        if size > MAX_GRAMMAR_BYTES:
            raise ValueError(f"a grammar may have {MAX_GRAMMAR_BYTES} bytes, got {size}")
        if (self.kind is GrammarKind.JSON_OBJECT) != (not self.source):
            raise ValueError(f"json_object takes no source, all others need one, got {self.kind} {self.source!r:.40}")

    def start(self) -> Constraint:
        """Raises: ValueError: not compiled yet."""
        if self.compiled is None:
            raise ValueError(f"the grammar must be compiled before the engine gets it, got {self.kind} as it was read")
        return self.compiled.start()
