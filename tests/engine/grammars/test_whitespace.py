"""JSON answers may contain only short runs of whitespace, but every usual way to format JSON is allowed.

Without the limit, a model could write nothing but whitespace until its token limit.
"""

import json
import random
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.grammars.compiler import GrammarCompiler
from engine.grammars.grammar import Constraint, Grammar, GrammarKind
from engine.tokenizer import Tokenizer
from tests.tiny_model import make_tiny_model

# limits of one run of whitespace: line breaks, and characters (a line break may be the two characters "\r\n")
MOST_LINE_BREAKS, MOST_CHARACTERS = 2, 44
TOOL_CALL = {
    "type": "tag",
    "begin": "<call>",
    "content": {"type": "json_schema", "json_schema": {"type": "object"}},
    "end": "</call>",
}
GRAMMARS = [
    Grammar(GrammarKind.JSON_OBJECT),
    Grammar(GrammarKind.JSON_SCHEMA, "{}"),
    Grammar(
        GrammarKind.JSON_SCHEMA,
        json.dumps({"type": "array", "items": {"type": "object", "properties": {"a": {"enum": ["x", 1]}}}}),
    ),
    Grammar(GrammarKind.STRUCTURAL_TAG, json.dumps({"type": "structural_tag", "format": TOOL_CALL})),
]
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=12,
)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.load(make_tiny_model(tmp_path_factory.mktemp("tokenizer")))


@pytest.fixture(scope="module")
def compiler(tokenizer: Tokenizer) -> GrammarCompiler:
    return GrammarCompiler(tokenizer, tokenizer.eos_token_ids, trial_seconds=None)


def is_allowed(constraint: Constraint, tokenizer: Tokenizer, answer: str) -> bool:
    for token in [*tokenizer.encode(answer), next(iter(tokenizer.eos_token_ids))]:
        if not constraint.allowed()[token]:
            return False
        constraint.accept(token)
    return True


@settings(max_examples=40, deadline=None)
@given(value=st.dictionaries(st.text(max_size=3), VALUES, max_size=3), indent=st.sampled_from([None, 0, 2, 4, "\t"]))
def test_every_usual_way_to_format_json_is_allowed(
    tokenizer: Tokenizer, compiler: GrammarCompiler, value: dict[str, Any], indent: int | str | None
) -> None:
    grammars = [
        compiler.compile(Grammar(GrammarKind.JSON_OBJECT)),
        compiler.compile(Grammar(GrammarKind.JSON_SCHEMA, "{}")),
    ]
    for separators in ((",", ":"), (", ", ": "), (" , ", " : ")) if indent is None else ((",", ": "),):
        answer = json.dumps(value, indent=indent, separators=separators, ensure_ascii=False)
        assert all(is_allowed(grammar.start(), tokenizer, answer) for grammar in grammars), answer
        if indent is not None:
            windows = answer.replace("\n", "\r\n")
            assert all(is_allowed(grammar.start(), tokenizer, windows) for grammar in grammars), windows


def test_ten_levels_of_objects_may_be_indented_by_four_spaces(tokenizer: Tokenizer, compiler: GrammarCompiler) -> None:
    value: Any = 1
    for _ in range(10):
        value = {"a": value}
    grammar = compiler.compile(Grammar(GrammarKind.JSON_OBJECT))
    assert is_allowed(grammar.start(), tokenizer, json.dumps(value, indent=4))


@pytest.mark.parametrize("grammar", GRAMMARS, ids=["object", "any", "schema", "tag"])
def test_runs_of_whitespace_stay_short_if_the_model_prefers_whitespace(
    tokenizer: Tokenizer, compiler: GrammarCompiler, grammar: Grammar
) -> None:
    generator = random.Random(0)
    vocabulary = [tokenizer.decode([token]) for token in range(tokenizer.vocab_size)]
    answer: list[int] = []
    constraint = compiler.compile(grammar).start()
    for _ in range(400):
        allowed = constraint.allowed().nonzero()[0].tolist()
        blank = [token for token in allowed if vocabulary[token].isspace()]
        inside_string = answer and tokenizer.decode(answer).count('"') % 2 == 1
        breaks = [token for token in blank if "\n" in vocabulary[token]]
        answer.append(generator.choice((breaks or blank or allowed) if not inside_string else allowed))
        constraint.accept(answer[-1])
        if answer[-1] in tokenizer.eos_token_ids:
            constraint, answer = compiler.compile(grammar).start(), []
        for run in re.findall(r"\s+", re.sub(r'"(?:\\.|[^"\\])*("|$)', '""', tokenizer.decode(answer))):
            assert run.count("\n") <= MOST_LINE_BREAKS, repr(run)
            assert len(run) <= MOST_CHARACTERS, repr(run)


@pytest.mark.parametrize("name", ["whitespace_1{0, 64}", 'a"whitespace{0, 64}"', "[whitespace{0, 64}", "é\n\\"])
def test_property_names_that_look_like_whitespace_rules_of_the_grammar_are_allowed(
    tokenizer: Tokenizer, compiler: GrammarCompiler, name: str
) -> None:
    schema = {"type": "object", "properties": {name: {"enum": [name]}}, "required": [name]}
    grammar = compiler.compile(Grammar(GrammarKind.JSON_SCHEMA, json.dumps(schema)))
    assert is_allowed(grammar.start(), tokenizer, json.dumps({name: name}, indent=2, ensure_ascii=False))
