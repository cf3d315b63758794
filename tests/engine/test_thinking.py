"""For a reasoning model, a grammar applies only to the answer, and a thinking budget ends the reasoning trace."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from engine.config import EngineConfig
from engine.drafters.base import Drafter
from engine.drafters.combined import CombinedDrafter
from engine.drafters.ngram import NgramDrafter
from engine.drafters.none import NoDrafter
from engine.drafters.suffix import SuffixDrafter
from engine.generate import generate
from engine.grammars.compiler import GrammarCompiler
from engine.grammars.grammar import Grammar, GrammarKind
from engine.load import load_model
from engine.loop import Engine
from engine.models.base import Model
from engine.request import Completion, FinishReason, Request, SamplingParams
from engine.thinking import Channels, Thinking, ThinkingConstraint, ThinkMarkers
from engine.tokenizer import Tokenizer
from tests.engine.drafters import BrokenDrafter, OracleDrafter
from tests.engine.openai.thinking_model import BEGIN, END, make_thinking_model

MARKERS = ThinkMarkers(BEGIN, END)
PATTERN = r'\{"a": [0-9]{3,9}\}'
END_OF_ANSWER = 2


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_thinking_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def model(folder: Path) -> Model:
    return load_model(folder)


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Tokenizer:
    return Tokenizer.load(folder)


@pytest.fixture(scope="module")
def grammar(tokenizer: Tokenizer) -> Grammar:
    compiler = GrammarCompiler(tokenizer, tokenizer.eos_token_ids, trial_seconds=None)
    return compiler.compile(Grammar(GrammarKind.REGEX, PATTERN))


def make_requests(
    thinking: Thinking, *, temperature: float, grammar: Grammar | None, begin_bias: float = 2.0, end_bias: float
) -> list[Request]:
    """The biases of the markers decide how many answers begin with a trace, and how long the traces become."""
    bias = ((BEGIN, begin_bias), (END, end_bias))
    prompts = [tuple(range(3 + n, 40, n)) * 2 for n in range(1, 7)]
    return [
        Request(
            f"r{n}",
            prompt,
            SamplingParams(
                max_tokens=70,
                temperature=temperature,
                seed=n,
                thinking=thinking,
                grammar=grammar,
                logit_bias=bias,
                num_logprobs=1,
            ),
            memory="test",
        )
        for n, prompt in enumerate(prompts)
    ]


def complete(model: Model, drafter: Drafter, requests: list[Request]) -> list[Completion]:
    return generate(Engine(model, drafter, EngineConfig(max_batch_size=4, draft_budget=10)), requests)


def split(completion: Completion, *, opened: bool) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Returns the tokens of the reasoning trace and the tokens of the answer."""
    ids = completion.token_ids
    if not opened and ids[0] != BEGIN:
        return (), ids
    return (ids[: ids.index(END)], ids[ids.index(END) + 1 :]) if END in ids else (ids, ())


def assert_equal_with_every_drafter(model: Model, requests: list[Request], plain: list[Completion]) -> None:
    tokens_of = {completion.request_id: completion.token_ids for completion in plain}
    vocab_size = model.config.vocab_size
    drafters: list[Drafter] = [
        NgramDrafter(),
        SuffixDrafter(past_tokens=100),
        CombinedDrafter([NgramDrafter(), SuffixDrafter(past_tokens=100)]),
        OracleDrafter(tokens_of, max_depth=6, error=0.0, tree=False, vocab_size=vocab_size),
        OracleDrafter(tokens_of, max_depth=5, error=0.2, tree=True, vocab_size=vocab_size),
        BrokenDrafter(),
    ]
    for drafter in drafters:
        drafted = complete(model, drafter, requests)
        assert [(c.token_ids, c.logprobs, c.finish_reason) for c in drafted] == [
            (c.token_ids, c.logprobs, c.finish_reason) for c in plain
        ], drafter.name


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("opened", [False, True], ids=["the model opens the trace", "the prompt opens the trace"])
def test_a_grammar_applies_after_the_reasoning_trace_with_every_drafter(
    model: Model, tokenizer: Tokenizer, grammar: Grammar, temperature: float, opened: bool
) -> None:
    thinking = Thinking(markers=MARKERS, opened=opened)
    requests = make_requests(thinking, temperature=temperature, grammar=grammar, end_bias=5.0 if temperature else 2.0)

    plain = complete(model, NoDrafter(), requests)

    lengths = set()
    for completion in plain:
        trace, answer = split(completion, opened=opened)
        assert END_OF_ANSWER not in trace
        if answer:
            assert re.fullmatch(PATTERN, tokenizer.decode(answer))
            assert completion.finish_reason is FinishReason.STOP
            lengths.add(len(trace))
    assert len(lengths) > 2
    assert_equal_with_every_drafter(model, requests, plain)


def test_a_grammar_applies_after_the_header_of_the_final_channel_with_every_drafter(
    model: Model, tokenizer: Tokenizer, grammar: Grammar
) -> None:
    """A header begins with BEGIN or at the start of the text, and ends with END. Biases make these tokens frequent."""
    (name,) = tokenizer.encode("x")
    start, end = 1, 3
    markers = ThinkMarkers(start, end, Channels(channel=BEGIN, message=END, final=(name,)))
    requests = make_requests(
        Thinking(markers=markers, opened=True), temperature=1.0, grammar=grammar, begin_bias=3.5, end_bias=3.5
    )
    requests = [
        replace(r, sampling=replace(r.sampling, logit_bias=(*r.sampling.logit_bias, (name, 4.0)))) for r in requests
    ]

    plain = complete(model, NoDrafter(), requests)

    lengths = set()
    for completion in plain:
        kinds = "".join({start: "b", BEGIN: "b", END: "e", name: "x"}.get(token, " ") for token in completion.token_ids)
        if completion.finish_reason is FinishReason.STOP:
            header = re.search("(^|b)x[^be]*e", kinds)
            assert header is not None
            assert re.fullmatch(PATTERN, tokenizer.decode(completion.token_ids[header.end() :]))
            lengths.add(header.end())
    assert len(lengths) > 2
    assert_equal_with_every_drafter(model, requests, plain)


def test_a_grammar_applies_from_the_first_token_to_an_answer_without_a_reasoning_trace(
    grammar: Grammar, tokenizer: Tokenizer
) -> None:
    thinking = Thinking(markers=MARKERS, opened=False)
    constraint = ThinkingConstraint(thinking, grammar.start(), end_token_ids={END_OF_ANSWER}, vocab_size=END + 1)
    brace = tokenizer.encode("{")[0]

    assert sorted(constraint.allowed().nonzero()[0].tolist()) == sorted([BEGIN, brace])
    constraint.accept(brace)
    assert constraint.allowed().nonzero()[0].tolist() == tokenizer.encode('"')
    constraint.follow([BEGIN, brace])
    assert constraint.num_accepted == 2
    allowed = constraint.allowed()
    assert (allowed[END], allowed[END_OF_ANSWER], int(allowed.sum())) == (True, False, END)
    constraint.follow([BEGIN, brace, END])
    assert constraint.allowed().nonzero()[0].tolist() == [brace]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(("opened", "budget"), [(False, 0), (False, 9), (True, 0), (True, 13)])
def test_a_thinking_budget_ends_the_reasoning_trace_at_the_same_token_with_every_drafter(
    model: Model, temperature: float, opened: bool, budget: int
) -> None:
    thinking = Thinking(markers=MARKERS, opened=opened, budget=budget)
    begin_bias = 6.0 if temperature else 3.0
    requests = make_requests(thinking, temperature=temperature, grammar=None, begin_bias=begin_bias, end_bias=-100.0)
    if opened:  # no biases, so that only the budget adjusts the logits
        requests = [replace(r, sampling=replace(r.sampling, logit_bias=())) for r in requests]

    plain = complete(model, NoDrafter(), requests)

    traces = [split(c, opened=opened)[0] for c in plain if opened or c.token_ids[0] == BEGIN]
    assert traces
    for trace in traces:
        assert len(trace) == budget + (not opened) or END_OF_ANSWER in trace  # the model may end the text before
    assert_equal_with_every_drafter(model, requests, plain)


def test_a_grammar_applies_after_a_reasoning_trace_that_the_thinking_budget_ended(
    model: Model, tokenizer: Tokenizer, grammar: Grammar
) -> None:
    thinking = Thinking(markers=MARKERS, opened=True, budget=7)
    requests = make_requests(thinking, temperature=1.0, grammar=grammar, end_bias=-100.0)

    plain = complete(model, NoDrafter(), requests)

    for completion in plain:
        assert completion.token_ids.index(END) == 7
        assert re.fullmatch(PATTERN, tokenizer.decode(completion.token_ids[8:]))
    assert_equal_with_every_drafter(model, requests, plain)


def test_draft_nodes_beyond_the_thinking_budget_are_dropped() -> None:
    thinking = Thinking(markers=MARKERS, opened=True, budget=3)
    constraint = ThinkingConstraint(thinking, None, end_token_ids=(), vocab_size=END + 1)
    constraint.accept(5)

    kept = constraint.allowed_nodes([6, 7, END, 8, END, 9], [-1, 0, 1, 1, 0, 4])

    assert kept == [0, 1, 2, 4, 5]
