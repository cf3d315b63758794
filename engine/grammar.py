"""What an answer must look like, as the caller spells it. How it is enforced is the business of `engine.constraint`."""

from dataclasses import dataclass
from enum import StrEnum

MAX_GRAMMAR_BYTES = 64 * 1024


class GrammarKind(StrEnum):
    """The language that `Grammar.source` is written in."""

    JSON_SCHEMA = "json_schema"  # a JSON Schema, as JSON text
    JSON_OBJECT = "json_object"  # any JSON object; the source is empty
    REGEX = "regex"  # the whole answer matches it
    EBNF = "ebnf"  # GBNF, as llama.cpp writes it; the rule `root` is the answer
    CHOICE = "choice"  # a JSON list of strings: the answer is one of them
    STRUCTURAL_TAG = "structural_tag"  # free text with constrained parts between tags, as JSON text; used for tools


@dataclass(frozen=True, slots=True)
class Grammar:
    kind: GrammarKind
    source: str = ""

    def __post_init__(self) -> None:
        size = len(self.source.encode())
        if size > MAX_GRAMMAR_BYTES:
            raise ValueError(f"a grammar may have {MAX_GRAMMAR_BYTES} bytes, got {size}")
        if (self.kind is GrammarKind.JSON_OBJECT) != (not self.source):
            raise ValueError(f"json_object takes no source, all others need one, got {self.kind} {self.source!r:.40}")
