"""Answers match their grammar and are equal with and without drafts; no grammar of a client blocks the process."""

import json
import random
import re
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.adjust import without_excluded
from engine.config import EngineConfig
from engine.draft import Draft
from engine.drafters.base import Drafter
from engine.drafters.ngram import NgramDrafter
from engine.drafters.none import NoDrafter
from engine.errors import GrammarTooSlow
from engine.fields import InvalidRequest
from engine.generate import generate
from engine.grammars.compiler import GrammarCompiler
from engine.grammars.grammar import Constraint, Grammar, GrammarKind
from engine.grammars.trial import GrammarTrial
from engine.load import load_model
from engine.loop import Engine
from engine.models.base import Model
from engine.request import Completion, FinishReason, Request, SamplingParams, SpeculationStats
from engine.sequence import Sequence
from engine.tokenizer import Tokenizer
from tests.engine.drafters import OracleDrafter
from tests.tiny_model import make_tiny_model

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 8},
        "age": {"type": "integer", "minimum": 0, "maximum": 130},
        "tags": {"type": "array", "items": {"enum": ["new", 'od"d', None]}, "maxItems": 3},
        "born": {"type": "string", "format": "date"},
    },
    "required": ["name", "age", "tags", "born"],
    "additionalProperties": False,
}
LINKED_LIST = {
    "$defs": {
        "node": {
            "type": "object",
            "properties": {
                "on": {"type": "boolean"},
                "code": {"type": "string", "pattern": "^[a-f]{2}$"},
                "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]},
            },
            "required": ["on", "next"],
        }
    },
    "$ref": "#/$defs/node",
}
ARRAY = {"type": "array", "prefixItems": [{"const": 1}], "items": {"type": ["boolean", "null"]}, "maxItems": 5}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.load(make_tiny_model(tmp_path_factory.mktemp("tokenizer")))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return load_model(make_tiny_model(tmp_path_factory.mktemp("model"), "llama"))


@pytest.fixture(scope="module")
def compiler(tokenizer: Tokenizer) -> GrammarCompiler:
    # None disables the process that first compiles each grammar with a time limit. This saves time.
    return GrammarCompiler(tokenizer, tokenizer.eos_token_ids, trial_seconds=None)


def make_requests(tokenizer: Tokenizer, grammar: Grammar, temperature: float, **options: Any) -> list[Request]:
    # A model with random weights would generate long answers. Therefore biases exclude whitespace and make "{"
    # unlikely, because "{" begins another node of the linked list.
    bias = [(tokenizer.encode(blank)[0], -100.0) for blank in " \n\t\r"] + [(tokenizer.encode("{")[0], -8.0)]
    params = SamplingParams(
        max_tokens=300, temperature=temperature, seed=3, grammar=grammar, logit_bias=tuple(bias), **options
    )
    generator = random.Random(0)
    prompts = [tuple(generator.randrange(3, 259) for _ in range(10)) for _ in range(4)]
    return [Request(f"r{index}", prompt, params) for index, prompt in enumerate(prompts)]


def complete(model: Model, drafter: Drafter, requests: list[Request]) -> list[Completion]:
    return generate(Engine(model, drafter, EngineConfig(max_batch_size=3, draft_budget=10)), requests)


def complete_texts(tokenizer: Tokenizer, completions: list[Completion]) -> list[str]:
    """Returns the texts of the answers, and checks that each answer is a complete match of its grammar."""
    assert {completion.finish_reason for completion in completions} == {FinishReason.STOP}
    return [tokenizer.decode(completion.token_ids) for completion in completions]


@pytest.mark.parametrize("schema", [PERSON, LINKED_LIST, ARRAY], ids=["object", "recursive", "array"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_json_answers_match_their_schema_and_do_not_depend_on_drafts(
    model: Model, tokenizer: Tokenizer, compiler: GrammarCompiler, schema: Any, temperature: float
) -> None:
    grammar = compiler.compile(Grammar(GrammarKind.JSON_SCHEMA, json.dumps(schema)))
    requests = make_requests(tokenizer, grammar, temperature, presence_penalty=0.5)
    plain = complete(model, NoDrafter(), requests)
    for text in complete_texts(tokenizer, plain):
        jsonschema.validate(json.loads(text), schema)
    answers: Any = {completion.request_id: completion.token_ids for completion in plain}
    vocab_size = model.config.vocab_size
    for drafter in (
        OracleDrafter(answers, max_depth=6, error=0.3, tree=False, vocab_size=vocab_size),
        OracleDrafter(answers, max_depth=3, error=0.2, tree=True, vocab_size=vocab_size),
        NgramDrafter(),
    ):
        drafted = complete(model, drafter, requests)
        assert [c.token_ids for c in drafted] == [c.token_ids for c in plain], drafter.name
        if isinstance(drafter, OracleDrafter):
            assert sum(c.speculation.num_accepted_draft_tokens for c in drafted) > 0


CHOICES = ["yes", 'no"', "pérhaps\n", "yes, but"]
EBNF = 'root ::= "<" digit digit? ">"\ndigit ::= [0-9]'


@pytest.mark.parametrize(
    ("kind", "source", "pattern"),
    [
        (GrammarKind.REGEX, "(ab|c){2,3}[0-9]?", "(ab|c){2,3}[0-9]?"),
        (GrammarKind.EBNF, EBNF, "<[0-9]{1,2}>"),
        (GrammarKind.CHOICE, json.dumps(CHOICES), "|".join(map(re.escape, CHOICES))),
    ],
)
def test_answers_match_their_grammar(
    model: Model, tokenizer: Tokenizer, compiler: GrammarCompiler, kind: GrammarKind, source: str, pattern: str
) -> None:
    grammar = compiler.compile(Grammar(kind, source))
    answers = complete_texts(tokenizer, complete(model, NoDrafter(), make_requests(tokenizer, grammar, 1.0)))
    assert all(re.fullmatch(pattern, answer) for answer in answers), answers


def test_json_object_answers_are_json_objects(model: Model, tokenizer: Tokenizer, compiler: GrammarCompiler) -> None:
    requests = make_requests(tokenizer, compiler.compile(Grammar(GrammarKind.JSON_OBJECT)), 1.0)
    completions = complete(model, NoDrafter(), requests)
    assert all(tokenizer.decode(completion.token_ids).startswith("{") for completion in completions)
    for completion in completions:
        if completion.finish_reason is FinishReason.STOP:
            assert isinstance(json.loads(tokenizer.decode(completion.token_ids)), dict)


def encode(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer.encode(text)


def allowed_texts(tokenizer: Tokenizer, constraint: Constraint) -> set[str]:
    return {tokenizer.token_bytes(int(token)).decode() for token in constraint.allowed().nonzero()[0]}


def test_after_a_complete_match_only_end_tokens_are_allowed(tokenizer: Tokenizer, compiler: GrammarCompiler) -> None:
    constraint = compiler.compile(Grammar(GrammarKind.CHOICE, '["ab"]')).start()
    constraint.follow(encode(tokenizer, "ab"))
    assert allowed_texts(tokenizer, constraint) == {"<|end|>"}
    (end,) = tokenizer.eos_token_ids
    constraint.accept(end)
    assert allowed_texts(tokenizer, constraint) == {"<|end|>"}


def test_a_complete_match_ends_the_answer_before_min_tokens(
    model: Model, tokenizer: Tokenizer, compiler: GrammarCompiler
) -> None:
    grammar = compiler.compile(Grammar(GrammarKind.REGEX, "abc?"))
    requests = make_requests(tokenizer, grammar, 1.0, min_tokens=50)
    # After "ab", min_tokens excludes the end, so only "c" is allowed. After "abc", the grammar allows only the end.
    assert set(complete_texts(tokenizer, complete(model, NoDrafter(), requests))) == {"abc"}


def test_the_tokens_that_a_constraint_allows_depend_only_on_the_answer_so_far(
    tokenizer: Tokenizer, compiler: GrammarCompiler
) -> None:
    grammar = compiler.compile(Grammar(GrammarKind.REGEX, "ab*[cd]|xy"))
    constraint, answer = grammar.start(), encode(tokenizer, "abbb")
    for token in answer:
        constraint.accept(token)
    new_constraint = grammar.start()
    new_constraint.follow(answer)
    constraint.follow(answer)
    assert allowed_texts(tokenizer, new_constraint) == allowed_texts(tokenizer, constraint) == {"b", "c", "d"}
    constraint.follow(encode(tokenizer, "x"))  # a different answer, as after a request was cancelled and added again
    assert allowed_texts(tokenizer, constraint) == {"y"}


def test_draft_nodes_that_a_grammar_excludes_are_removed(tokenizer: Tokenizer, compiler: GrammarCompiler) -> None:
    grammar = compiler.compile(Grammar(GrammarKind.REGEX, "ab(c|d)e"))
    request = Request("r", (5,), SamplingParams(max_tokens=9, grammar=grammar))
    tokens = [5, *encode(tokenizer, "a")]
    sequence = Sequence(request, tokens, root=None, stats=SpeculationStats(), constraint=grammar.start())
    # The draft after "a" begins with b (node 0) or x (node 1). The children of b are c (node 2), d, e, a special token
    # and a token outside of the vocabulary; x and c have a child e each.
    guesses = (*encode(tokenizer, "bxcdeee"), 1, tokenizer.vocab_size)
    draft = Draft(guesses, (-1, -1, 0, 0, 2, 1, 0, 0, 0), (0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1))
    kept = without_excluded(draft, sequence)
    assert (kept.tokens, kept.parents) == (tuple(encode(tokenizer, "bcde")), (-1, 0, 0, 1))
    assert sequence.constraint is not None
    assert allowed_texts(tokenizer, sequence.constraint) == {"b"}


def test_the_engine_refuses_a_grammar_that_was_not_compiled(model: Model) -> None:
    params = SamplingParams(max_tokens=4, grammar=Grammar(GrammarKind.REGEX, "a"))
    with pytest.raises(ValueError, match="the grammar must be compiled before the engine gets it"):
        Engine(model, NoDrafter(), EngineConfig()).add(Request("r", (1,), params))


LEAVES: st.SearchStrategy[Any] = st.one_of(
    st.sampled_from([True, {}, {"type": "boolean"}, {"type": "null"}, {"enum": [1, "a\n", None, {"k": [2.5]}]}]),
    st.integers(-9, 9).map(lambda low: {"type": "integer", "minimum": low, "exclusiveMaximum": low + 12}),
    st.integers(0, 2).map(lambda low: {"type": "string", "minLength": low, "maxLength": 2 * low}),
    st.sampled_from(["^a+$", "b|^c", "[0-9]$", "^.{2}$"]).map(lambda pattern: {"type": "string", "pattern": pattern}),
    st.sampled_from([{"type": "number", "exclusiveMinimum": 2.5}, {"type": ["integer", "null"], "maximum": 4}]),
)
SCHEMAS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.builds(
            lambda properties, required, more: {
                **{"type": "object", "properties": properties, "additionalProperties": more},
                "required": sorted(properties.keys() & required),
            },
            st.dictionaries(st.sampled_from(["a", 'b"', "c d"]), inner, max_size=3),
            st.sets(st.sampled_from(["a", 'b"'])),
            st.booleans(),
        ),
        inner.map(lambda item: {"type": "array", "items": item, "minItems": 1, "maxItems": 2}),
        st.lists(inner, min_size=1, max_size=3).map(lambda schemas: {"anyOf": schemas}),
    ),
    max_leaves=6,
)


@settings(max_examples=40, deadline=None)
@given(schema=SCHEMAS, seed=st.integers(0, 10**6))
def test_any_answer_that_the_grammar_of_a_schema_allows_matches_the_schema(
    tokenizer: Tokenizer, compiler: GrammarCompiler, schema: Any, seed: int
) -> None:
    constraint = compiler.compile(Grammar(GrammarKind.JSON_SCHEMA, json.dumps(schema))).start()
    generator, answer = random.Random(seed), []
    closing = {*encode(tokenizer, '"}]:,'), *tokenizer.eos_token_ids}
    for step in range(400):
        tokens = [int(token) for token in constraint.allowed().nonzero()[0]]
        # tokens that close brackets are preferred, so that the answer ends
        preferred = [token for token in tokens if token in closing] if step > 20 else []
        answer.append(generator.choice(preferred or tokens))
        if answer[-1] in tokenizer.eos_token_ids:
            jsonschema.validate(json.loads(tokenizer.decode(answer)), schema)
            return
        constraint.accept(answer[-1])


@pytest.fixture(scope="module")
def compiler_with_trial(tokenizer: Tokenizer) -> Iterator[GrammarCompiler]:
    compiler = GrammarCompiler(tokenizer, tokenizer.eos_token_ids, trial_seconds=1)
    yield compiler
    compiler.close()


REFUSED = [  # (kind, source, error message); ".*" in a message stands for any text
    ("json_schema", '{"type": ', "must be JSON: Expecting value"),
    ("json_schema", '{"type": "strng"}', "must have a type at # out of .*, got 'strng'"),
    ("json_schema", '{"type": "array", "uniqueItems": true}', "has ['uniqueItems'] at # beside ['type'], which is not"),
    ("json_schema", '{"anyOf": [{}], "minimum": 3}', "has ['minimum'] at # beside ['anyOf'], which is not supported"),
    ("json_schema", '{"items": {"not": {}}}', "has ['not'] at #/items without a type, which is not supported"),
    ("json_schema", '{"oneOf": [{"type": "null"}]}', "has ['oneOf'] at #"),
    ("json_schema", '{"$ref": "https://example.com/a.json"}', "has a $ref at # that leaves the schema"),
    ("json_schema", '{"$ref": "#/$defs/a"}', "is refused: Cannot find field $defs"),
    ("json_schema", '{"$ref": "#"}', "can't be satisfied by any answer"),
    ("json_schema", '{"type": "integer", "minimum": 5, "maximum": 1}', "is refused: Invalid range"),
    (
        "json_schema",
        '{"type": "object", "required": ["a"]}',
        "requires names at # that are not in its properties: ['a']",
    ),
    ("json_schema", '{"type": "integer", "enum": [1, "a"]}', "names a value at # that is not of type integer, got 'a'"),
    ("json_schema", '{"items": ' * 70 + "{}" + "}" * 70, "is nested more than 64 levels deep"),
    ("json_schema", "[" * 30000, "is too deeply nested"),
    ("json_schema", '{"type": "string", "pattern": "([a-z"}', "is refused: Regex parsing error"),
    ("regex", "(abc", "is refused: Regex parsing error at position 5: The parenthesis is not closed."),
    ("regex", "(a)\\1", "is refused: .* Backreference is not supported yet"),
    ("ebnf", "root ::= root", "can't be satisfied by any answer"),
    ("ebnf", 'other ::= "a"', 'is refused: .* The root rule with name "root" is not found'),
    ("choice", '["a", 3]', "must be a list of at least one string"),
    ("structural_tag", "{}", "is refused: Invalid structural tag error"),
]


@pytest.mark.parametrize(("kind", "source", "message"), REFUSED)
def test_an_invalid_grammar_is_refused_with_the_reason(
    compiler_with_trial: GrammarCompiler, kind: str, source: str, message: str
) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        compiler_with_trial.compile(Grammar(GrammarKind(kind), source), param="response_format")
    words = re.escape(message).replace(r"\.\*", ".*")
    assert re.match(f"the {kind} {words}", refusal.value.message), refusal.value.message
    assert (refusal.value.param, refusal.value.code) == ("response_format", "invalid_grammar")


def test_a_grammar_that_takes_too_long_to_compile_is_refused(compiler_with_trial: GrammarCompiler) -> None:
    slow = 'root ::= (([a-z]{1,3000} | [a-z0-9]{1,3000}){1,3000} "b"){1,3000}'
    with pytest.raises(InvalidRequest, match="the ebnf takes more than 1 s to compile"):
        compiler_with_trial.compile(Grammar(GrammarKind.EBNF, slow))
    later = compiler_with_trial.compile(Grammar(GrammarKind.REGEX, "as before"))
    assert later.compiled is not None


def test_the_trial_process_is_restarted_after_it_was_killed(tokenizer: Tokenizer) -> None:
    trial = GrammarTrial(tokenizer.vocabulary(), sorted(tokenizer.eos_token_ids), cpu_seconds=1)
    try:
        process = trial._start()
        process.kill()
        process.wait()
        trial._process = process
        assert trial.find_error("regex", "a") is None
    finally:
        trial.close()


def test_matching_beyond_the_time_limit_raises_grammar_too_slow(
    compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    constraint = compiler.compile(Grammar(GrammarKind.REGEX, "slow")).start()
    monkeypatch.setattr("engine.grammars.compiler._SLOW_SECONDS", -1.0)  # every token takes longer than that
    with pytest.raises(GrammarTooSlow, match="for a token: it is too ambiguous"):
        constraint.allowed()


def test_a_compiled_grammar_is_cached(compiler: GrammarCompiler) -> None:
    first = compiler.compile(Grammar(GrammarKind.REGEX, "once"))
    assert compiler.compile(Grammar(GrammarKind.REGEX, "once")).compiled is first.compiled
    assert first == Grammar(GrammarKind.REGEX, "once")
