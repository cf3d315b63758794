"""Verification yields the tokens of plain decoding, also with penalties, biases and a minimum length."""

import math
import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor
from transformers import (
    MinNewTokensLengthLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
)

from engine.adjust import Adjuster
from engine.config import EngineConfig
from engine.draft import EMPTY_DRAFT, Draft
from engine.drafters.base import Drafter
from engine.drafters.ngram import NgramDrafter
from engine.drafters.none import NoDrafter
from engine.generate import generate
from engine.load import load_model
from engine.loop import Engine
from engine.models.base import Model
from engine.request import Completion, Request, SamplingParams, SpeculationStats
from engine.sequence import Sequence
from engine.token_counts import TokenCounts
from engine.verify import verify
from tests.engine.drafters import OracleDrafter
from tests.engine.test_scheduler import CountedTokens
from tests.tiny_model import make_tiny_model

EOS = frozenset({2})
ADJUSTMENTS: dict[str, dict[str, Any]] = {
    "repetition": {"repetition_penalty": 1.4},
    "presence": {"presence_penalty": 1.5},
    "frequency": {"frequency_penalty": 0.7},
    "bias": {"logit_bias": ((2, 4.0), (100, 8.0), (101, 7.9), (7, -50.0))},
    "minimum length": {"min_tokens": 15, "logit_bias": ((2, 30.0),)},
    "all": {
        **{"repetition_penalty": 1.2, "presence_penalty": 0.5, "frequency_penalty": 0.4, "min_tokens": 9},
        **{"logit_bias": ((2, 6.0), (100, 3.0)), "top_p": 0.95, "min_p": 0.001, "top_k": 100},
    },
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return load_model(make_tiny_model(tmp_path_factory.mktemp("model"), "llama"))


def make_requests(model: Model, options: dict[str, Any]) -> list[Request]:
    generator = random.Random(1)
    prompts = [[generator.randrange(model.config.vocab_size) for _ in range(12)] for _ in range(5)]
    params = SamplingParams(**{"max_tokens": 24, "seed": 5, "num_logprobs": 1, **options})
    return [Request(f"r{index}", tuple(prompt), params) for index, prompt in enumerate(prompts)]


def answers(model: Model, drafter: Drafter, requests: list[Request]) -> list[tuple[object, ...]]:
    engine = Engine(model, drafter, EngineConfig(max_batch_size=4, draft_budget=12))
    return [without_statistics(completion) for completion in generate(engine, requests)]


def without_statistics(completion: Completion) -> tuple[object, ...]:
    return completion.request_id, completion.token_ids, completion.logprobs, completion.finish_reason


@pytest.mark.parametrize("options", ADJUSTMENTS.values(), ids=ADJUSTMENTS.keys())
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_drafts_do_not_change_answers_with_adjusted_logits(
    model: Model, options: dict[str, Any], temperature: float
) -> None:
    requests = make_requests(model, {"temperature": temperature, **options})
    plain = answers(model, NoDrafter(), requests)
    assert plain != answers(model, NoDrafter(), make_requests(model, {"temperature": temperature})), (
        "the adjustments have no effect"
    )
    tokens_of: Any = {request_id: token_ids for request_id, token_ids, _, _ in plain}
    vocab_size = model.config.vocab_size
    for drafter in (
        OracleDrafter(tokens_of, max_depth=6, error=0.2, tree=False, vocab_size=vocab_size),
        OracleDrafter(tokens_of, max_depth=4, error=0.1, tree=True, vocab_size=vocab_size),
        NgramDrafter(),
    ):
        assert answers(model, drafter, requests) == plain, drafter.name


def make_sequence(prompt: list[int], answer: list[int], **options: Any) -> Sequence:
    request = Request("r", tuple(prompt), SamplingParams(**{"max_tokens": 50, **options}))
    return Sequence(request, prompt + answer, root=None, stats=SpeculationStats())


@given(
    draft=st.lists(st.tuples(st.integers(0, 5), st.integers(-1, 9)), max_size=10),  # (token, parent)
    # one row for the root, and one for each of at most 10 nodes
    logits=st.lists(st.lists(st.integers(-3, 3), min_size=6, max_size=6), min_size=11, max_size=11),
    answer=st.lists(st.integers(0, 5), max_size=5),
    temperature=st.sampled_from([0.0, 1.0]),
)
def test_verifying_a_tree_gives_the_same_tokens_as_verifying_without_drafts(
    draft: list[tuple[int, int]], logits: list[list[int]], answer: list[int], temperature: float
) -> None:
    parents = [min(parent, node - 1) for node, (_, parent) in enumerate(draft)]
    tree = Draft(tuple(token for token, _ in draft), tuple(parents), (0.5,) * len(draft))
    rows = torch.tensor(logits[: 1 + len(tree)]) / 2.0
    options = {"temperature": temperature, "repetition_penalty": 1.5, "frequency_penalty": 0.6, "min_tokens": 4}
    verdict = verify(rows, tree, make_sequence([0, 3], answer, **options), EOS)

    tokens: list[int] = []
    for row in (0, *(node + 1 for node in verdict.path)):
        sequence = make_sequence([0, 3], answer + tokens, **options)
        tokens += verify(rows[row : row + 1], EMPTY_DRAFT, sequence, EOS).tokens
    assert verdict.tokens == tuple(tokens)
    assert [tree.tokens[node] for node in verdict.path] == tokens[:-1]
    children = [token for token, parent in zip(tree.tokens, tree.parents, strict=True) if parent == last_node(verdict)]
    assert tokens[-1] not in children  # otherwise the child would have been accepted


def last_node(verdict: Any) -> int:
    """Returns the last accepted node; -1 is the root."""
    return int(verdict.path[-1]) if verdict.path else -1


def random_logits(size: int = 40) -> Tensor:
    return 3 * torch.randn(size, generator=torch.Generator().manual_seed(3))


def adjusted(logits: Tensor, sequence: Sequence) -> Tensor:
    return Adjuster(sequence, EOS).adjust(logits)


def test_repetition_penalty_bias_and_minimum_length_agree_with_transformers() -> None:
    prompt, answer, logits = [1, 5, 5, 30], [7, 5, 9], random_logits()
    bias = {8: 1.5, 9: -4.0, 2: 3.0}
    options = {"repetition_penalty": 1.7, "min_tokens": 4, "logit_bias": tuple(bias.items())}
    ids, scores = torch.tensor([prompt + answer]), logits[None].clone()
    for processor in (
        SequenceBiasLogitsProcessor([[[token], value] for token, value in bias.items()]),
        RepetitionPenaltyLogitsProcessor(1.7),
        MinNewTokensLengthLogitsProcessor(len(prompt), 4, [2]),
    ):
        scores = processor(ids, scores)
    assert torch.equal(adjusted(logits, make_sequence(prompt, answer, **options)), scores[0])
    assert scores[0, 2] == -math.inf


def test_presence_and_frequency_penalties_count_only_the_answer() -> None:
    logits = random_logits()
    actual = adjusted(logits, make_sequence([1, 1, 7], [7, 5, 7], presence_penalty=0.5, frequency_penalty=0.25))
    expected = logits.clone()
    expected[7] -= 0.5 + 2 * 0.25
    expected[5] -= 0.5 + 0.25
    torch.testing.assert_close(actual, expected)


def test_end_and_stop_tokens_are_allowed_once_the_answer_has_min_tokens() -> None:
    logits = random_logits()
    for length, is_allowed in ((3, False), (4, True)):
        sequence = make_sequence([1], [5] * length, min_tokens=4, stop_token_ids=frozenset({9}))
        assert bool(adjusted(logits, sequence)[[2, 9]].isfinite().all()) is is_allowed
    without_end_tokens = make_sequence([1], [5], min_tokens=4, ignore_eos=True)
    assert torch.equal(adjusted(logits, without_end_tokens), logits)


def test_verification_does_not_modify_the_logits_in_place() -> None:
    logits = torch.stack([random_logits(), random_logits()])
    before = logits.clone()
    options = {"repetition_penalty": 2.0, "presence_penalty": 2.0, "min_tokens": 3, "logit_bias": ((4, 100.0),)}
    verdict = verify(logits, Draft((4,), (-1,), (0.9,)), make_sequence([4], [], temperature=0.0, **options), EOS)
    assert verdict.tokens == (4, 4)
    assert torch.equal(logits, before)


def test_a_logit_bias_for_a_token_outside_the_vocabulary_is_refused(model: Model) -> None:
    params = SamplingParams(max_tokens=4, logit_bias=((model.config.vocab_size, 1.0),))
    with pytest.raises(ValueError, match=r"token ids of a request must be in 0\.\.258"):
        Engine(model, NoDrafter(), EngineConfig()).add(Request("r", (1,), params))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"repetition_penalty": 0.0}, r"repetition_penalty must be in \(0, 10\], got 0.0"),
        ({"presence_penalty": 2.1}, r"presence_penalty must be in -2..2, got 2.1"),
        ({"frequency_penalty": math.nan}, r"frequency_penalty must be in -2..2, got nan"),
        ({"logit_bias": ((1, 101.0),)}, r"in -100..100, got 101.0 for 1"),
        ({"logit_bias": ((1, 1.0), (1, 2.0))}, r"must not contain a token twice"),
        ({"min_tokens": 9}, r"min_tokens must be in 0..max_tokens = 8, got 9"),
    ],
)
def test_the_error_for_an_invalid_value_states_the_rule_and_the_value(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SamplingParams(max_tokens=8, **options)


@pytest.mark.parametrize("name", ["repetition", "presence", "frequency", "minimum length", "all"])
def test_the_number_of_tokens_read_per_step_does_not_grow_with_the_answer(name: str) -> None:
    sequence = make_sequence(list(range(20)), [], **{**ADJUSTMENTS[name], "max_tokens": 2000, "ignore_eos": True})
    sequence.tokens = tokens = CountedTokens(sequence.tokens)
    logits, num_read = torch.randn(300, 128, generator=torch.Generator().manual_seed(1)), []
    for row in logits.split(1):
        before = tokens.num_read
        tokens += verify(row, EMPTY_DRAFT, sequence, EOS).tokens
        num_read.append(tokens.num_read - before)

    assert max(num_read[1:]) <= 1
    expected = make_sequence(list(range(20)), list(tokens[20:]), **ADJUSTMENTS[name])
    assert torch.equal(adjusted(random_logits(128), sequence), adjusted(random_logits(128), expected))


def test_the_answer_is_not_replayed_through_the_grammar_at_each_step() -> None:
    class Follower:
        num_accepted = num_followed = 0

        def follow(self, answer: list[int]) -> None:
            self.num_followed += 1
            self.num_accepted = len(answer)

        def allowed(self) -> NDArray[np.bool_]:
            return np.ones(40, np.bool_)

        def accept(self, token: int) -> None:
            self.num_accepted += 1

    sequence = make_sequence([0, 3], [5, 6])
    sequence.constraint = follower = Follower()  # type: ignore[assignment]
    # With a bias, the logits are adjusted although the request names no grammar.
    sequence.request = replace(sequence.request, sampling=replace(sequence.request.sampling, logit_bias=((1, 0.5),)))
    for row in torch.randn(50, 40, generator=torch.Generator().manual_seed(1)).split(1):
        sequence.tokens += verify(row, EMPTY_DRAFT, sequence, EOS).tokens

    assert follower.num_followed == 1  # only the first step passes the existing answer through the grammar


def test_token_counts_list_each_token_once_and_forget_rejected_drafts() -> None:
    counts = TokenCounts(10, torch.device("cpu"))
    counts.follow([4, 7, 4, 2, 2], prompt_length=3)
    assert counts.ids.tolist() == [4, 7, 2]
    assert counts.in_answer[counts.ids].tolist() == [0.0, 0.0, 2.0]
    for token in (4, 9, 9):
        counts.accept(token)
    assert counts.ids.tolist() == [4, 7, 2, 9]
    assert counts.in_answer[counts.ids].tolist() == [1.0, 0.0, 2.0, 2.0]
    counts.follow([4, 7, 4, 2, 2, 4], prompt_length=3)
    assert counts.ids.tolist() == [4, 7, 2]
    assert counts.in_answer.tolist() == [0.0, 0.0, 2.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0]


def test_token_counts_read_only_the_new_tokens_of_an_answer() -> None:
    class Tokens(list[int]):
        num_read = 0

        def __getitem__(self, index: Any) -> Any:
            found = super().__getitem__(index)
            self.num_read += len(found) if isinstance(index, slice) else 1
            return found

    tokens, counts = Tokens([3] * 1_000), TokenCounts(10, torch.device("cpu"))
    counts.follow(tokens, prompt_length=100)
    tokens.num_read = 0
    tokens.extend([5, 6])

    counts.follow(tokens, prompt_length=100)

    assert tokens.num_read == 2
    assert counts.in_answer[[3, 5, 6]].tolist() == [900.0, 1.0, 1.0]
