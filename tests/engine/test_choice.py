"""`choose` turns a drafter's logits into ranked candidates whose survival is their probability of acceptance."""

import math

import pytest
import torch

from engine.drafters.choice import choose
from engine.request import SamplingParams
from kernels.philox import gumbel, gumbel_rows
from kernels.sampling import sample_token

GREEDY = SamplingParams(max_tokens=1, temperature=0.0, top_p=0.5, top_k=1)


def random_logits(rows: int, size: int, *, scale: float = 3.0) -> torch.Tensor:
    return scale * torch.randn(rows, size, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("size", [5, 300, 16384])
def test_greedy_candidates_are_the_likeliest_tokens_even_with_filters(size: int) -> None:
    logits = random_logits(3, size)
    candidates = choose(logits, [GREEDY] * 3, [7, 8, 9], count=8)
    best = logits.softmax(-1).topk(min(8, size))
    assert torch.equal(candidates.tokens, best.indices)
    torch.testing.assert_close(candidates.survival, best.values)


def test_candidates_are_token_ids_of_the_target() -> None:
    candidates = choose(torch.tensor([[0.0, 2.0, 1.0]]), [GREEDY], [0], count=2, vocab=torch.tensor([10, 20, 30]))
    assert candidates.tokens.tolist() == [[20, 30]]


@pytest.mark.parametrize(
    "filters", [{}, {"top_p": 0.6}, {"top_k": 3}, {"min_p": 0.2}, {"temperature": 1.7, "seed": 2**64 - 1}]
)
def test_a_drafter_with_the_same_logits_as_the_target_ranks_the_sampled_token_first(filters: dict[str, float]) -> None:
    params = SamplingParams(**{"max_tokens": 1, "temperature": 0.8, "seed": 5, **filters})  # type: ignore[arg-type]
    logits = random_logits(200, 40)
    candidates = choose(logits, [params] * 200, list(range(200)), count=40)
    for position, (row, guess) in enumerate(zip(logits, candidates.tokens[:, 0].tolist(), strict=True)):
        token = sample_token(
            row,
            temperature=params.temperature,
            top_k=params.top_k,
            top_p=params.top_p,
            min_p=params.min_p,
            seed=params.seed,
            position=position,
        )
        assert guess == token


def test_tokens_that_top_k_excludes_have_a_survival_of_zero() -> None:
    params = SamplingParams(max_tokens=1, temperature=1.0, top_k=2, seed=1)
    candidates = choose(random_logits(4, 20), [params] * 4, [0, 1, 2, 3], count=6)
    assert (candidates.survival[:, 2:] == 0.0).all()
    assert (candidates.survival[:, :2] > 0.0).all()


def test_survivals_are_sorted_and_add_up_to_at_most_one() -> None:
    mixed = [GREEDY, SamplingParams(max_tokens=1, temperature=0.9, seed=3)]
    candidates = choose(random_logits(2, 500), mixed, [4, 4], count=8)
    assert (candidates.survival.diff(dim=-1) <= 0.0).all()
    assert (candidates.survival.sum(-1) <= 1.0).all()
    assert torch.equal(candidates.tokens[0], random_logits(2, 500)[0].topk(8).indices)


def test_the_first_candidate_is_accepted_as_often_as_its_survival_predicts() -> None:
    """The target's logits are the drafter's logits plus Gumbel noise of scale 1; `choose` assumes such an error."""
    rows, params = 4000, SamplingParams(max_tokens=1, temperature=0.7, seed=9)
    logits = random_logits(rows, 12, scale=1.5)
    candidates = choose(logits, [params] * rows, list(range(rows)), count=12)
    generator = torch.Generator().manual_seed(1)
    difference = -torch.log(-torch.log(torch.rand(rows, 12, generator=generator)))
    noise = gumbel_rows([9] * rows, range(rows), torch.arange(12).expand(rows, -1))
    target_tokens = ((logits + difference) / 0.7 + noise).argmax(-1)
    acceptance_rate = (target_tokens == candidates.tokens[:, 0]).double().mean()
    assert math.isclose(acceptance_rate, candidates.survival[:, 0].mean(), abs_tol=0.025)  # three standard errors


def test_the_noise_of_a_row_does_not_depend_on_other_rows() -> None:
    tokens = torch.arange(12).view(3, 4) * 1000
    seeds, positions = (0, 2**63 + 5, 77), (0, 12, 2**20)
    all_rows = gumbel_rows(seeds, positions, tokens)
    for row in range(3):
        assert torch.equal(all_rows[row], gumbel(seeds[row], positions[row], tokens[row]))
