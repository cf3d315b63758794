"""Acceptance and speed by phase and by context, with a tiny reasoning model whose figures can be computed by hand."""

import json
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from engine.config import EngineConfig
from engine.drafters.none import NoDrafter
from engine.drafters.suffix import SuffixDrafter
from engine.grammars.compiler import GrammarCompiler
from engine.load import load_model
from engine.loop import Engine
from engine.models.base import Model
from engine.tokenizer import Tokenizer
from tests.engine.drafters import OracleDrafter
from tests.engine.openai.thinking_model import BEGIN, END, make_thinking_model
from tests.workers.support import chat_row
from workers.inference.comparison import Arms, ArmTotals, Measurement, measure
from workers.inference.measured import read_measurements, write_measurements
from workers.inference.rows import InputRow, RowRequest, prepare_row
from workers.inference.segments import figures_by_context, figures_by_phase

DEPTH = 3  # number of draft tokens in a pass
TRACE: dict[str, Any] = {
    "chat_template_kwargs": {"opened": True},
    "thinking_token_budget": 10,
    "logit_bias": {END: -100, 258: -100},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_thinking_model(tmp_path_factory.mktemp("thinking"))


@pytest.fixture(scope="module")
def model(folder: Path) -> Model:
    return load_model(folder)


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Tokenizer:
    return Tokenizer.load(folder)


def prepared(tokenizer: Tokenizer, number: int = 0, content: str = "hi", **body: Any) -> RowRequest:
    values = json.loads(json.dumps(chat_row("x", content, **body)["body"]))  # makes the ids in logit_bias strings
    row = InputRow(number, f"row-{number}", "/v1/chat/completions", values)
    grammars = GrammarCompiler(tokenizer, tokenizer.eos_token_ids)
    request = prepare_row(row, tokenizer=tokenizer, grammars=grammars, max_seq_len=2048, seed_key="job")
    assert isinstance(request, RowRequest)
    return request


def measured(
    model: Model,
    tokenizer: Tokenizer,
    rows: list[RowRequest],
    *,
    concurrency: int = 1,
    spoil: Callable[[int], bool] = lambda position: False,
) -> Measurement:
    """Measures the rows with a drafter that knows the answers, except the tokens at positions where `spoil` is true.

    Each reading of the clock is one second after the previous one.
    """
    config = EngineConfig(max_batch_size=4, draft_budget=DEPTH)
    plain = Engine(model, NoDrafter(), config)
    ticks = count()

    def clock() -> float:
        return float(next(ticks))

    def run(engine: Engine) -> Measurement:
        arms = Arms(plain=plain, suffix=Engine(model, SuffixDrafter(), config), speculative=engine)
        return measure(
            arms, rows, tokenizer=tokenizer, concurrency=concurrency, repeats=1, on_answer=lambda: None, clock=clock
        )

    known = {str(a.request.row.number): a.token_ids for a in run(Engine(model, NoDrafter(), config)).plain.answers}
    drafts = {name: [0 if spoil(n) else token for n, token in enumerate(ids)] for name, ids in known.items()}
    vocab_size = model.config.vocab_size
    oracle = OracleDrafter(drafts, max_depth=DEPTH, error=0.0, tree=False, vocab_size=vocab_size)
    return run(Engine(model, oracle, config))


def test_acceptance_and_speed_are_attributed_to_the_phase_in_which_a_pass_begins(
    model: Model, tokenizer: Tokenizer
) -> None:
    """The answer has 24 tokens: 10 tokens of the reasoning trace, the end marker, and 13 tokens after the marker.

    The prefill samples token 0. No draft within the trace is right, so tokens 1 to 10 take one pass each. Token 10 is
    the marker. (The drafts of the last three passes have only 2, 1 and 0 tokens, because the
    `thinking_token_budget` allows no more.) After the marker all drafts are right, and a pass adds 4 tokens: 13 tokens
    take 3 passes, and a fourth pass for the last token. Plain decoding takes one pass per token. Each pass takes one
    second.
    """
    row = prepared(tokenizer, max_tokens=24, **TRACE)

    found = measured(model, tokenizer, [row], spoil=lambda position: position <= 10)

    (answer,) = found.speculative.answers
    assert answer.token_ids.index(END) == 10
    thinking, answering = figures_by_phase(found.plain.segments, found.speculative.segments)
    assert thinking == {
        "phase": "thinking",
        "passes": 10,
        "draft_tokens": 7 * DEPTH + 2 + 1,
        "accepted_draft_tokens": 0,
        "tokens": 10,
        "acceptance_length": 1.0,
        "decode_tokens_per_second_plain": 1.0,
        "decode_tokens_per_second_speculative": 1.0,
        "decode_speedup": 1.0,
    }
    assert answering == {
        "phase": "answering",
        "passes": 4,
        "draft_tokens": 3 * DEPTH,
        "accepted_draft_tokens": 3 * DEPTH,
        "tokens": 13,
        "acceptance_length": 1 + 9 / 4,
        "decode_tokens_per_second_plain": 1.0,
        "decode_tokens_per_second_speculative": 13 / 4,
        "decode_speedup": 13 / 4,
    }


def test_the_sums_over_segments_equal_the_statistics_of_the_answers(model: Model, tokenizer: Tokenizer) -> None:
    rows = [
        prepared(tokenizer, 0, max_tokens=30, **TRACE),
        prepared(tokenizer, 1, "x" * 490, max_tokens=60, temperature=0.8, logit_bias={BEGIN: -100}),
        prepared(tokenizer, 2, max_tokens=40, stop=["a", "e", "o"], temperature=1.0),
        prepared(tokenizer, 3, max_tokens=1),
        prepared(tokenizer, 4, "y" * 30, max_tokens=33),
    ]

    found = measured(model, tokenizer, rows, concurrency=3, spoil=lambda position: position % 5 == 0)

    stats, segments = found.speculative.speculation, found.speculative.segments
    assert sum(s.passes for s in segments) == stats.num_spec_steps
    assert sum(s.drafted for s in segments) == stats.num_draft_tokens
    assert sum(s.accepted for s in segments) == stats.num_accepted_draft_tokens
    by_phase = figures_by_phase(found.plain.segments, segments)
    # a pass of several answers has no separate time for each answer
    assert [entry["decode_speedup"] for entry in by_phase] == [None, None]


def test_passes_are_attributed_to_the_context_at_which_they_begin(model: Model, tokenizer: Tokenizer) -> None:
    """The first pass begins one token after the prompt, and each pass adds 4 tokens. So one pass begins at 509 and
    crosses 512."""
    row = prepared(tokenizer, content="x", max_tokens=21, logit_bias={BEGIN: -100, 258: -100})
    padding = 508 - len(row.request.prompt_token_ids)
    prompt = (*row.request.prompt_token_ids, *[70] * padding)
    row = replace(row, request=replace(row.request, prompt_token_ids=prompt))

    found = measured(model, tokenizer, [row])

    below, above = figures_by_context(found.plain.segments, found.speculative.segments)
    ranges = [(entry["context_from"], entry["context_to"]) for entry in (below, above)]
    assert ranges == [(0, 512), (512, 2048)]
    assert [(entry["passes"], entry["tokens"], entry["acceptance_length"]) for entry in (below, above)] == [
        (1, 4, 4.0), (4, 16, 4.0)
    ]  # fmt: skip
    assert [entry["decode_speedup"] for entry in (below, above)] == [4.0, 4.0]
    # In plain decoding, each of the passes that begin at 509, 510 and 511 adds one token.
    assert sum(s.tokens for s in found.plain.segments if s.context_from == 0) == 3


def test_a_model_without_think_markers_has_one_phase(tiny_model: Path) -> None:
    model, tokenizer = load_model(tiny_model), Tokenizer.load(tiny_model)
    found = measured(model, tokenizer, [prepared(tokenizer, max_tokens=9)])
    (entry,) = figures_by_phase(found.plain.segments, found.speculative.segments)
    assert (entry["phase"], entry["passes"], entry["tokens"]) == ("answering", 2, 8)


def test_an_interrupted_evaluation_keeps_its_segments(model: Model, tokenizer: Tokenizer, tmp_path: Path) -> None:
    row = prepared(tokenizer, max_tokens=24, **TRACE)
    found = measured(model, tokenizer, [row])

    write_measurements(tmp_path / "1", [found], {"commit": "a"})
    (read,) = read_measurements(tmp_path / "1", [row], tokenizer, {"commit": "a"})

    arms: list[tuple[ArmTotals, ArmTotals]] = [(read.plain, found.plain), (read.speculative, found.speculative)]
    assert all(again.segments == before.segments for again, before in arms)
    assert json.dumps(figures_by_phase(read.plain.segments, read.speculative.segments))
