"""The LM head on CUDA samples and ranks tokens like its reference, and its rows do not depend on each other.

Shape letters: M hidden states of size K, V tokens in the vocabulary.
"""

import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.cuda.linear import linear, num_splits
from kernels.cuda.lm_head import best_tokens, gumbel, sample_rows
from kernels.lm_head import Head, SampledRows, best_tokens_reference, sample_rows_reference
from kernels.lm_head import best_tokens as checked_best_tokens
from kernels.philox import gumbel_rows_reference
from kernels.sampling import sample_token_reference
from tests.kernels.cuda.device import DEVICE, DTYPES, make

SEEDS = [0, 1, 2**63 + 9, 2**64 - 1, 12345]


def rows_for(M: int, temperature: float | None = None) -> SampledRows:
    """Makes sampling parameters of M rows: temperatures 0, 0.7 and 1.3 in turn, or `temperature` for all rows."""
    temperatures = [(0.0, 0.7, 1.3)[m % 3] if temperature is None else temperature for m in range(M)]
    return SampledRows.of(temperatures, [SEEDS[m % 5] for m in range(M)], [m * 977 for m in range(M)], DEVICE)


def quarters(x: Tensor) -> Tensor:
    """Rounds to multiples of 1/4. Sums of products of such numbers are exact in float32, in any order."""
    return (x * 4).round() / 4


@triton.jit  # type: ignore[untyped-decorator]
def _noise_kernel(seeds_ptr, positions_ptr, tokens_ptr, out_ptr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    row, column = tl.arange(0, 4)[:, None], tl.arange(0, BLOCK)[None, :]
    noise = gumbel(tl.load(seeds_ptr + row), tl.load(positions_ptr + row), tl.load(tokens_ptr + column))
    tl.store(out_ptr + row * BLOCK + column, noise)


def test_noise_equals_the_reference() -> None:
    seeds, positions, tokens = SEEDS[:4], [0, 7, 2**31 - 1, 40_000], torch.arange(64) * 2503
    rows = SampledRows.of([1.0] * 4, seeds, positions, DEVICE)
    out = torch.empty(4, 64, dtype=torch.float64, device=DEVICE)
    _noise_kernel[(1,)](rows.seeds, rows.positions, tokens.to(DEVICE), out, BLOCK=64)
    expected = gumbel_rows_reference(seeds, positions, tokens.expand(4, -1))
    # The log() of the two libraries differs in the last bits. A wrong bit in a random word changes the noise by more.
    torch.testing.assert_close(out.cpu(), expected, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("M", "V", "K"), [(1, 63, 16), (16, 64, 40), (17, 65, 64), (40, 300, 65)])
def test_sampled_tokens_equal_the_reference(dtype: torch.dtype, M: int, V: int, K: int) -> None:
    x, weight = quarters(make(M, K, seed=1)).to(dtype), quarters(make(V, K, seed=2)).to(dtype)  # exact in any order
    rows = rows_for(M)
    assert torch.equal(sample_rows(x, Head(data=weight), rows, None), exact_tokens(x, weight, rows))


def exact_tokens(x: Tensor, weight: Tensor, rows: SampledRows, base: Tensor | None = None) -> Tensor:
    return sample_rows_reference(x.float(), Head(data=weight.float()), rows, base)


def test_the_reference_samples_the_same_tokens_as_the_engine() -> None:
    x, weight, rows = make(6, 16, seed=1), make(50, 16, seed=2), rows_for(6)
    tokens = sample_rows_reference(x, Head(data=weight), rows)
    for m in range(6):
        expected = sample_token_reference(
            x[m] @ weight.T,
            temperature=float(rows.temperatures[m]),
            top_k=0,
            top_p=1.0,
            min_p=0.0,
            seed=SEEDS[m % 5],
            position=m * 977,
        )
        assert int(tokens[m]) == expected


@pytest.mark.parametrize("dtype", DTYPES)
def test_base_logits_are_added_before_sampling(dtype: torch.dtype) -> None:
    x, weight = quarters(make(5, 16, seed=1)).to(dtype), quarters(make(130, 16, seed=2)).to(dtype)
    base = quarters(make(5, 3, 130, seed=3))[:, 1]  # [5, 130], not contiguous
    rows = rows_for(5)
    assert torch.equal(sample_rows(x, Head(data=weight), rows, base), exact_tokens(x, weight, rows, base))


@pytest.mark.parametrize("dtype", DTYPES)
def test_with_a_reduced_vocabulary_noise_depends_on_the_token_id_and_not_on_the_row_of_the_head(
    dtype: torch.dtype,
) -> None:
    x, weight, rows = make(4, 16, seed=1, dtype=dtype), make(70, 16, seed=2, dtype=dtype), rows_for(4, 1.0)
    vocab = torch.randperm(5000, generator=torch.Generator().manual_seed(1))[:70].sort().values.to(DEVICE)
    head = Head(data=weight, vocab=vocab)
    sampled = sample_rows(x, head, rows, None)
    assert torch.isin(sampled, vocab).all()
    assert torch.equal(sampled, sample_rows_reference(x.float(), Head(data=weight.float(), vocab=vocab), rows))


def test_the_lowest_id_is_chosen_among_tokens_with_equal_logits() -> None:
    weight = torch.zeros(200, 16, device=DEVICE)
    weight[[70, 71, 150]] = 1.0  # these three tokens have the highest logit, all others a lower one
    x = torch.ones(2, 16, device=DEVICE)
    assert sample_rows(x, Head(data=weight), rows_for(2, 0.0), None).tolist() == [70, 70]
    assert best_tokens(x, Head(data=weight), 4, None).tokens.tolist() == [[70, 71, 150, 0]] * 2


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("V", "count"), [(5, 5), (64, 1), (65, 8), (700, 3), (700, 20)])
def test_the_best_tokens_and_the_log_sum_exp_equal_the_reference(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, V: int, count: int
) -> None:
    monkeypatch.setattr("kernels.cuda.lm_head._CHUNK", 64)  # small chunks, so that merging takes two rounds
    x, weight = quarters(make(3, 16, seed=1)).to(dtype), quarters(make(V, 16, seed=2)).to(dtype)
    vocab = torch.arange(V, device=DEVICE) * 3 + 1
    actual = best_tokens(x, Head(data=weight, vocab=vocab), count, None)
    reference = best_tokens_reference(x.float(), Head(data=weight.float(), vocab=vocab), count)
    assert torch.equal(actual.tokens, reference.tokens)
    torch.testing.assert_close(actual.values, reference.values, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(actual.log_sums, reference.log_sums, rtol=1e-6, atol=1e-6)


def test_logits_of_an_int8_head_are_multiplied_by_its_scales() -> None:
    x, scales = quarters(make(3, 16, seed=1)), torch.arange(1, 71, device=DEVICE) / 64
    data = (make(70, 16, seed=2) * 20).to(torch.int8)
    head = Head(data=data, scales=scales)
    assert torch.equal(
        best_tokens(x, head, 5, None).tokens, best_tokens_reference(x, Head(data=data * scales[:, None]), 5).tokens
    )


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_tokens_of_a_row_do_not_depend_on_the_other_rows(dtype: torch.dtype) -> None:
    x, head, rows = make(35, 64, seed=1, dtype=dtype), Head(data=make(130, 64, seed=2, dtype=dtype)), rows_for(35)
    sampled, best = sample_rows(x, head, rows, None), best_tokens(x, head, 4, None)
    for part in (slice(0, 1), slice(34, 35), slice(3, 20)):
        part_rows = SampledRows(rows.temperatures[part], rows.seeds[part], rows.positions[part])
        assert torch.equal(sample_rows(x[part], head, part_rows, None), sampled[part])
        part_best = best_tokens(x[part], head, 4, None)
        assert torch.equal(part_best.values, best.values[part])
        assert torch.equal(part_best.log_sums, best.log_sums[part])


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_logits_of_the_head_have_the_same_bits_as_a_product_with_one_sum(dtype: torch.dtype) -> None:
    """Without `one_sum`, the product with a vocabulary this small is computed in four splits of K."""
    x, weight = make(5, 1024, seed=1, dtype=dtype), make(130, 1024, seed=2, dtype=dtype)
    assert num_splits(*weight.shape) == 4
    logits = linear(x, weight, None, None, one_sum=True)

    best = best_tokens(x, Head(data=weight), 130, None)

    assert torch.equal(best.values, logits.gather(1, best.tokens))


def test_a_count_above_the_vocabulary_size_is_refused() -> None:
    with pytest.raises(ValueError, match=r"count must be in 1..5, got 6"):
        checked_best_tokens(make(1, 8, seed=1), Head(data=make(5, 8, seed=2)), 6)
