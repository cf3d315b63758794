"""With a temperature, answers are samples of the model's distribution, whatever the drafter.

Every request has a different seed. Top-k leaves five tokens at each position, so that there are only 125 possible
beginnings of three tokens, which can be counted. The counts would reveal a drafter that biases the answers, or noise
that is the same for several tokens of an accepted path.
"""

import itertools
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch

from engine.config import EngineConfig
from engine.drafters.base import Drafter
from engine.drafters.block import BlockDrafter
from engine.drafters.combined import CombinedDrafter
from engine.drafters.draft_model import DraftModelDrafter
from engine.drafters.eagle3 import Eagle3Drafter
from engine.drafters.medusa import MedusaDrafter
from engine.drafters.medusa_heads import MedusaConfig, MedusaHeads
from engine.drafters.mtp import MtpDrafter
from engine.drafters.mtp_layer import DensePrediction
from engine.drafters.ngram import NgramDrafter
from engine.drafters.none import NoDrafter
from engine.drafters.suffix import SuffixDrafter
from engine.generate import generate
from engine.load import load_model
from engine.loop import Engine
from engine.models.base import Model
from engine.request import Request, SamplingParams
from tests.engine.drafters import BrokenDrafter, OracleDrafter
from tests.engine.eagle3_reference import make_config, make_module
from tests.engine.tiny_speculators import make_block, make_mtp
from tests.tiny_model import make_tiny_model

PROMPT = (40, 41, 42, 43) * 3
TEMPERATURE, TOP_K, NUM_SEEDS, LENGTH = 1.2, 5, 320, 4

Answers = Mapping[str, tuple[int, ...]]


def medusa(model: Model) -> MedusaDrafter:
    torch.manual_seed(0)
    size = model.config.vocab_size
    config = MedusaConfig(hidden_size=model.config.hidden_size, num_heads=3, draft_vocab_size=size)
    heads = MedusaHeads(config, torch.arange(size))
    torch.nn.init.normal_(heads.weight, std=0.3)
    return MedusaDrafter(heads, model)


def oracle(model: Model, plain: Answers, *, error: float, tree: bool) -> OracleDrafter:
    return OracleDrafter(plain, max_depth=3, error=error, tree=tree, vocab_size=model.config.vocab_size)


# Makes a drafter of each kind from the model and its `plain` answers, which were generated without a drafter.
DRAFTERS: dict[str, Callable[[Any, Answers], Drafter]] = {
    "none": lambda model, plain: NoDrafter(),
    "ngram": lambda model, plain: NgramDrafter(),
    "suffix": lambda model, plain: SuffixDrafter(past_tokens=500),
    "medusa": lambda model, plain: medusa(model),
    "draft model": lambda model, plain: DraftModelDrafter(model, model),
    "combined": lambda model, plain: CombinedDrafter([medusa(model), SuffixDrafter(past_tokens=100)]),
    "eagle3": lambda model, plain: Eagle3Drafter(make_module(make_config(tap_layers=(0, 1, 2))), model),
    "block": lambda model, plain: BlockDrafter(make_block(), model),
    "mtp": lambda model, plain: MtpDrafter(DensePrediction(make_mtp(), model), model, max_depth=3),
    "oracle, a chain": lambda model, plain: oracle(model, plain, error=0.3, tree=False),
    "oracle, a tree": lambda model, plain: oracle(model, plain, error=0.3, tree=True),
    "always wrong": lambda model, plain: oracle(model, plain, error=1.0, tree=False),
    "broken": lambda model, plain: BrokenDrafter(),
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return load_model(make_tiny_model(tmp_path_factory.mktemp("model"), "llama"))


def sample(model: Model, drafter: Drafter) -> dict[str, tuple[int, ...]]:
    params = {"max_tokens": LENGTH, "temperature": TEMPERATURE, "top_k": TOP_K, "ignore_eos": True}
    requests = [
        Request(str(seed), PROMPT, SamplingParams(seed=seed, **params), memory="test")  # type: ignore[arg-type]
        for seed in range(NUM_SEEDS)
    ]
    engine = Engine(model, drafter, EngineConfig(max_batch_size=64, draft_budget=6))
    return {completion.request_id: completion.token_ids for completion in generate(engine, requests)}


@pytest.fixture(scope="module")
def plain(model: Model) -> Answers:
    return sample(model, NoDrafter())


@pytest.fixture(scope="module")
def expected(model: Model) -> dict[tuple[int, ...], float]:
    """Returns the probability of each possible beginning of three tokens, computed from the model's logits."""
    probabilities: dict[tuple[int, ...], float] = {(): 1.0}
    with torch.inference_mode():
        for _ in range(3):
            longer: dict[tuple[int, ...], float] = {}
            for prefix, probability in probabilities.items():
                logits = model.logits(model.hidden_states(torch.tensor(PROMPT + prefix)).final[-1:])[0]
                best = logits.double().topk(TOP_K)
                shares = (best.values / TEMPERATURE).softmax(0)
                for token, share in zip(best.indices.tolist(), shares.tolist(), strict=True):
                    longer[(*prefix, token)] = probability * share
            probabilities = longer
    return probabilities


def p_value(counts: Mapping[tuple[int, ...], int], expected: Mapping[tuple[int, ...], float]) -> float:
    """Returns the p-value of Pearson's chi-square test. Outcomes with expected counts below five are merged."""
    total = sum(counts.values())
    often = [answer for answer, share in expected.items() if share * total >= 5.0]
    observed = [counts[answer] for answer in often]
    predicted = [expected[answer] * total for answer in often]
    pairs = [*zip(observed, predicted, strict=True), (total - sum(observed), total - sum(predicted))]
    chi_square = sum((actual - mean) ** 2 / mean for actual, mean in pairs)
    half_degrees = torch.tensor((len(pairs) - 1) / 2.0, dtype=torch.float64)
    return float(torch.special.gammaincc(half_degrees, torch.tensor(chi_square / 2.0, dtype=torch.float64)))


@pytest.mark.parametrize("make", DRAFTERS.values(), ids=DRAFTERS.keys())
def test_answers_are_samples_from_the_distribution_of_the_model(
    model: Model, plain: Answers, expected: dict[tuple[int, ...], float], make: Callable[[Any, Answers], Drafter]
) -> None:
    answers = sample(model, make(model, plain))
    counts = Counter(answer[:3] for answer in answers.values())
    assert counts.keys() <= expected.keys()
    assert p_value(counts, expected) > 1e-3  # the seeds are fixed, so the result is always the same
    assert answers == plain


def test_the_statistical_test_detects_a_wrong_distribution(
    expected: dict[tuple[int, ...], float], plain: Answers
) -> None:
    """Replaces one answer in ten by the likeliest answer, as if drafts were accepted too easily."""
    likeliest = max(expected, key=lambda answer: expected[answer])
    replaced = itertools.cycle([True] + 9 * [False])
    pairs = zip(plain.values(), replaced, strict=False)
    counts = Counter(likeliest if is_replaced else answer[:3] for answer, is_replaced in pairs)
    assert p_value(counts, expected) < 1e-3
