"""A chi-square test of whether speculation changes the distribution of sampled answers.

For the same request and seed, speculation returns the same tokens; `outputs_equal` in the report counts such answers.
This test asks instead whether answers with and without speculation are samples from the same distribution. The plain
and the speculative arm therefore get different seeds, and their counts of the tokens at each position are compared. The
first token of an answer comes from the prefill pass, the later tokens from passes that verify drafts.

Each position of each prompt is one test of homogeneity. The reported p-value is the smallest, multiplied by the number
of tests (Bonferroni), so a correct implementation has a p-value below 0.05 in at most 5 % of evaluations.

Source: Pearson's chi-square test of homogeneity; tokens with a small expected count are combined, as Cochran 1954
recommends.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from engine.generate import generate
from engine.loop import Engine
from engine.request import Request, SamplingParams
from workers.inference.comparison import Arms
from workers.inference.rows import RowRequest

NUM_PROMPTS, NUM_SAMPLES, NUM_TOKENS = 2, 100, 3
TEMPERATURE = 1.0
_LEAST_COUNT = 10  # rare tokens occur less often in both arms together; 10 gives an expected count of 5 per arm
_NUM_GROUPS = 8  # groups of rare tokens


@dataclass(frozen=True, slots=True)
class DistributionTest:
    """p_value: None if every answer had the same tokens, so that there was nothing to compare."""

    prompts: int
    samples: int
    tokens: int
    temperature: float
    p_value: float | None

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def compare_distributions(arms: Arms, rows: Sequence[RowRequest]) -> DistributionTest:
    """Samples answers to the first prompts with the plain and with the speculative arm, and compares their tokens."""
    prompts = [row.request.prompt_token_ids for row in rows[:NUM_PROMPTS]]
    p_values = []
    for prompt in prompts:
        plain = _tokens_by_position(arms.plain, prompt, first_seed=0)
        speculative = _tokens_by_position(arms.speculative, prompt, first_seed=NUM_SAMPLES)
        found = (homogeneity(*counts) for counts in zip(plain, speculative, strict=True))
        p_values += [p_value for p_value in found if p_value is not None]
    combined = min(1.0, min(p_values) * len(p_values)) if p_values else None
    return DistributionTest(len(prompts), NUM_SAMPLES, NUM_TOKENS, TEMPERATURE, combined)


def homogeneity(first: Counter[int], second: Counter[int]) -> float | None:
    """Returns the p-value of the hypothesis that both counts of tokens are samples from one distribution.

    Rare tokens are combined into groups by their id modulo 8. Groups that are still rare are left out.
    Returns None if fewer than two categories remain, because there is then nothing to compare.
    """
    together = first + second
    table: dict[int, list[int]] = {}  # by token; groups have negative numbers
    for token in together:
        category = token if together[token] >= _LEAST_COUNT else -1 - token % _NUM_GROUPS
        row = table.setdefault(category, [0, 0])
        row[0], row[1] = row[0] + first[token], row[1] + second[token]
    observed = torch.tensor([row for row in table.values() if sum(row) >= _LEAST_COUNT], dtype=torch.float64)
    if observed.shape[0] < 2:
        return None
    expected = observed.sum(1, keepdim=True) * observed.sum(0, keepdim=True) / observed.sum()
    statistic = ((observed - expected) ** 2 / expected).sum()
    degrees = torch.tensor(observed.shape[0] - 1, dtype=torch.float64)
    return float(torch.special.gammaincc(degrees / 2, statistic / 2))  # the chi-square distribution's upper tail


def _tokens_by_position(engine: Engine, prompt: tuple[int, ...], *, first_seed: int) -> list[Counter[int]]:
    """Returns the counts of the tokens at each position of the answers with NUM_SAMPLES seeds."""
    engine.drafter.forget_past()
    requests = [
        Request(
            f"distribution-{seed}",
            prompt,
            SamplingParams(max_tokens=NUM_TOKENS, temperature=TEMPERATURE, seed=seed, ignore_eos=True),
        )
        for seed in range(first_seed, first_seed + NUM_SAMPLES)
    ]
    answers = [completion.token_ids for completion in generate(engine, requests)]
    return [Counter(answer[position] for answer in answers if position < len(answer)) for position in range(NUM_TOKENS)]
