"""`top_k` returns the largest logits of each row and the row's log mass (log-sum-exp), as torch does."""

import pytest
import torch

from kernels.top_k import top_k, top_k_reference


def make(rows: int, size: int) -> torch.Tensor:
    return 4.0 * torch.randn(rows, size, generator=torch.Generator().manual_seed(size))


# Sizes on both sides of a vector of 16 numbers. The last two are on both sides of 2**17 logits in total, from which
# several threads are used.
@pytest.mark.parametrize(("rows", "size"), [(1, 1), (3, 15), (2, 16), (5, 17), (4, 1809), (3, 43_690), (3, 43_691)])
@pytest.mark.parametrize("count", [1, 6, 24])
def test_the_best_columns_and_the_log_mass_equal_the_reference(rows: int, size: int, count: int) -> None:
    logits, count = make(rows, size), min(count, size)
    values, columns, log_masses = top_k(logits, count)
    best, _, reference = top_k_reference(logits, count)
    assert torch.equal(values, best)
    assert torch.equal(logits.gather(-1, columns), values)
    assert all(len(set(row)) == count for row in columns.tolist())
    torch.testing.assert_close(log_masses, reference, rtol=2e-6, atol=2e-6)


def test_equal_logits_are_ordered_by_column() -> None:
    logits = torch.zeros(2, 40)
    logits[1, [30, 7]] = 1.0
    assert top_k(logits, 3)[1].tolist() == [[0, 1, 2], [7, 30, 0]]


def test_the_log_mass_is_correct_with_very_large_and_infinite_logits() -> None:
    logits = torch.tensor([[300.0, -torch.inf, 299.0], [-3e38, -torch.inf, -3e38]])
    torch.testing.assert_close(top_k(logits, 2)[2], logits.logsumexp(-1))


@pytest.mark.parametrize("count", [0, 6])
def test_a_count_that_is_zero_or_above_the_vocabulary_is_refused(count: int) -> None:
    with pytest.raises(ValueError, match=r"count must be in 1\.\.5"):
        top_k(torch.zeros(1, 5), count)
