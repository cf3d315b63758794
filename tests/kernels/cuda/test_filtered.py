"""Sampling with top-k, top-p and min-p on CUDA gives the same tokens as sampling row by row on the host."""

import pytest
import torch

from kernels.candidates import RowSampling
from kernels.cuda.filtered import sample_filtered_rows
from kernels.sampling import sample_token
from tests.kernels.cuda.device import DEVICE

FILTERS = [  # (top_k, top_p, min_p) of each row; the values 0, 1.0 and 0.0 disable a filter
    (0, 0.9, 0.0),
    (0, 0.2, 0.0),
    (3, 1.0, 0.0),
    (40, 0.7, 0.01),
    (0, 1.0, 0.1),
    (5000, 0.999, 0.0),
    (1, 1.0, 0.0),
]


def rows_of(filters: list[tuple[int, float, float]], temperature: float) -> RowSampling:
    top_ks, top_ps, min_ps = zip(*filters, strict=True)
    count = len(filters)
    # Row i has the seed i - 3 and the position 7 i. A negative seed stands for the uint64 seed with the same bits.
    return RowSampling(
        temperatures=torch.full((count,), temperature, dtype=torch.float64, device=DEVICE),
        seeds=torch.arange(-3, count - 3, device=DEVICE),
        positions=torch.arange(count, device=DEVICE) * 7,
        top_ks=torch.tensor(top_ks, device=DEVICE),
        top_ps=torch.tensor(top_ps, dtype=torch.float64, device=DEVICE),
        min_ps=torch.tensor(min_ps, dtype=torch.float64, device=DEVICE),
    )


@pytest.mark.parametrize("temperature", [0.3, 1.0, 1.9])
@pytest.mark.parametrize("V", [5, 1023, 1025, 3000])
def test_sampled_tokens_equal_the_tokens_sampled_on_the_host(V: int, temperature: float) -> None:
    logits = 3.0 * torch.randn(len(FILTERS), V, generator=torch.Generator().manual_seed(V))
    logits[:, 1] = logits[:, 3]  # equal logits: the lower token id ranks first
    actual = sample_filtered_rows(logits.to(DEVICE), rows_of(FILTERS, temperature)).tolist()
    expected = [
        sample_token(
            row,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            min_p=min_p,
            seed=(index - 3) % 2**64,
            position=7 * index,
        )
        for index, (row, (top_k, top_p, min_p)) in enumerate(zip(logits, FILTERS, strict=True))
    ]
    assert actual == expected


def test_rows_with_temperature_0_get_a_valid_token_id() -> None:
    actual = sample_filtered_rows(torch.zeros(7, 11, device=DEVICE), rows_of(FILTERS, 0.0))
    assert ((actual >= 0) & (actual < 11)).all()
