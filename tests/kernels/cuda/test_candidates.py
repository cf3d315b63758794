"""The CUDA kernel ranks candidates like its reference, and the reference ranks them like the drafters on the host."""

import pytest
import torch

from engine.drafters.choice import choose
from engine.request import SamplingParams
from kernels.candidates import RowSampling, candidates_reference
from kernels.cuda.candidates import candidates
from kernels.lm_head import BestTokens
from tests.kernels.cuda.device import DEVICE

PARAMS = [
    SamplingParams(max_tokens=1, temperature=0.0),
    SamplingParams(max_tokens=1, temperature=0.7, seed=2**63 + 11),
    SamplingParams(max_tokens=1, temperature=1.3, top_p=0.6, seed=5),
    SamplingParams(max_tokens=1, temperature=1.0, top_k=2, seed=6),
    SamplingParams(max_tokens=1, temperature=0.9, min_p=0.3, seed=7),
]
POSITIONS = [3, 1, 4, 1000, 5]


def sampling(device: torch.device) -> RowSampling:
    seeds = [params.seed - (params.seed >> 63 << 64) for params in PARAMS]  # uint64 to int64 with the same bits
    integers = torch.tensor([seeds, POSITIONS, [params.top_k for params in PARAMS]], device=device)
    names = ("temperature", "top_p", "min_p")
    floats = torch.tensor([[getattr(p, name) for p in PARAMS] for name in names], dtype=torch.float64, device=device)
    return RowSampling(
        temperatures=floats[0],
        seeds=integers[0],
        positions=integers[1],
        top_ks=integers[2],
        top_ps=floats[1],
        min_ps=floats[2],
    )


def best_tokens(k: int, device: torch.device) -> BestTokens:
    logits = 2.0 * torch.randn(len(PARAMS), 50, generator=torch.Generator().manual_seed(k))
    values, tokens = logits.topk(k)
    return BestTokens(values.to(device), tokens.to(device), logits.logsumexp(-1).to(device))


@pytest.mark.parametrize("k", [1, 2, 7, 8, 32])
def test_the_kernel_ranks_candidates_as_its_reference_does(k: int) -> None:
    actual = candidates(best_tokens(k, DEVICE), sampling(DEVICE))
    reference = candidates_reference(best_tokens(k, DEVICE), sampling(DEVICE))
    # Candidates with survival 0 may come in any order.
    assert torch.equal(actual.tokens * (reference.survival > 0), reference.tokens * (reference.survival > 0))
    # exp() differs between libraries.
    torch.testing.assert_close(actual.survival, reference.survival, rtol=1e-5, atol=1e-7)


def test_the_reference_ranks_candidates_as_the_drafters_do() -> None:
    host = torch.device("cpu")
    logits = 2.0 * torch.randn(len(PARAMS), 50, generator=torch.Generator().manual_seed(8))
    actual = candidates_reference(best_tokens(8, host), sampling(host))
    expected = choose(logits, PARAMS, POSITIONS, count=8)
    # Candidates with survival 0 may come in any order.
    assert torch.equal(actual.tokens * (expected.survival > 0), expected.tokens * (expected.survival > 0))
    torch.testing.assert_close(actual.survival, expected.survival, rtol=1e-5, atol=1e-7)
