"""Philox gives the published random words; sampling agrees with brute force and follows the softmax distribution."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from kernels.philox import MAX_GUMBEL, MIN_GUMBEL, gumbel, gumbel_rows, gumbel_rows_reference, philox, vocabulary_words
from kernels.sampling import greedy_tokens, kept_tokens, sample_token, sample_token_reference

# From the file kat_vectors of the Random123 library: counter, key, result.
VECTORS = [
    ((0, 0, 0, 0), 0, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, 0xFFFFFFFFFFFFFFFF, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        0x299F31D0A4093822,
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("counter", "seed", "expected"), VECTORS)
def test_philox_gives_the_published_words(counter: tuple[int, ...], seed: int, expected: tuple[int, ...]) -> None:
    c0, c1, c2, c3 = (torch.tensor(word) for word in counter)
    assert tuple(int(word) for word in philox(seed, (c0, c1, c2, c3))) == expected


def test_the_bounds_of_the_noise_enclose_its_extremes_closely() -> None:
    extremes = [-math.log(-math.log((word + 0.5) / 2**32)) for word in (0, 2**32 - 1)]
    assert MIN_GUMBEL < extremes[0] < MIN_GUMBEL + 1e-3
    assert MAX_GUMBEL - 1e-3 < extremes[1] < MAX_GUMBEL


def test_token_t_uses_word_t_mod_4_of_philox_block_t_div_4() -> None:
    tokens, zero = torch.tensor([0, 5, 5, 151_935, 49_150]), torch.zeros(5, dtype=torch.int64)
    # A block of four words has the noise of four tokens; 77 is the position.
    words = philox(2**63 + 9, (tokens // 4, zero + 77, zero, zero))
    token_words = torch.stack(words)[tokens % 4, torch.arange(5)]
    expected = -torch.log(-torch.log((token_words.double() + 0.5) / 2**32))
    torch.testing.assert_close(gumbel(2**63 + 9, 77, tokens), expected, rtol=1e-15, atol=1e-15)
    assert vocabulary_words(2**63 + 9, 77, 151_936)[tokens].tolist() == token_words.tolist()


@pytest.mark.parametrize("size", [1, 4, 65_535, 65_537])  # both sides of numpy's block size
def test_noise_of_the_whole_vocabulary_equals_noise_computed_per_token(size: int) -> None:
    tokens = torch.arange(size)
    words = torch.from_numpy(vocabulary_words(3, 4, size))  # seed 3, position 4
    noise = -torch.log(-torch.log((words.double() + 0.5) / 2**32))
    torch.testing.assert_close(noise, gumbel_rows_reference([3], [4], tokens[None])[0], rtol=1e-15, atol=1e-15)


def test_the_noise_of_rows_equals_the_reference() -> None:
    tokens, seeds, positions = torch.randint(0, 10**6, (3, 50)), (0, 2**64 - 1, 12345), (0, 2**31 - 1, 7)
    actual, reference = gumbel_rows(seeds, positions, tokens), gumbel_rows_reference(seeds, positions, tokens)
    torch.testing.assert_close(actual, reference, rtol=1e-15, atol=1e-15)  # logarithms differ between libraries


def brute_force(logits: Tensor, *, temperature: float, top_k: int, top_p: float, min_p: float, seed: int) -> int:
    """Applies the definitions of the filters one after the other, and adds noise to every token."""
    scaled = [value / temperature for value in logits.tolist()]
    ranked = sorted(range(len(scaled)), key=lambda token: (-scaled[token], token))
    ranked = ranked[:top_k] if top_k else ranked
    weights = [math.exp(scaled[token] - scaled[ranked[0]]) for token in ranked]
    kept: list[int] = []
    mass = 0.0
    for token, weight in zip(ranked, weights, strict=True):
        if mass / sum(weights) >= top_p and kept and top_p < 1.0:
            break
        kept.append(token)
        mass += weight
    kept = [token for token in kept if scaled[token] >= scaled[kept[0]] + (math.log(min_p) if min_p else -math.inf)]
    noise = gumbel(seed, 5, torch.arange(len(scaled))).tolist()
    return max(kept, key=lambda token: scaled[token] + noise[token])


@given(
    values=st.lists(st.floats(-30, 30, width=32), min_size=1, max_size=40),
    temperature=st.sampled_from([0.3, 0.8, 1.0, 2.0]),
    top_k=st.integers(0, 10),
    top_p=st.sampled_from([1.0, 0.9, 0.31, 0.05]),
    min_p=st.sampled_from([0.0, 0.07, 0.6]),
    seed=st.integers(0, 2**64 - 1),
)
def test_sampled_tokens_equal_brute_force(
    values: list[float], temperature: float, top_k: int, top_p: float, min_p: float, seed: int
) -> None:
    logits = torch.tensor(values)
    options = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p, "seed": seed}
    sampled = sample_token(logits, position=5, **options)  # type: ignore[arg-type]
    assert sampled == brute_force(logits, **options)  # type: ignore[arg-type]


# Vocabulary sizes and standard deviations of the logits. With large deviations few tokens are likely to be sampled,
# with small ones many or all.
LARGE = [
    (5000, 6.0),
    (5000, 1.5),
    (5000, 0.01),
    (49_152, 3.0),
]


@pytest.mark.parametrize(("size", "spread"), LARGE)
@pytest.mark.parametrize("filters", [{}, {"top_p": 0.9}, {"top_k": 50}, {"top_k": 50, "top_p": 0.7}, {"min_p": 0.05}])
def test_sampled_tokens_of_large_vocabularies_equal_the_reference(
    size: int, spread: float, filters: dict[str, float]
) -> None:
    logits = spread * torch.randn(3, size, generator=torch.Generator().manual_seed(size))
    options = {"temperature": 0.9, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "seed": 2**40 + 1, **filters}
    rounded = logits[0].round()  # many equal logits
    masked = logits[1].masked_fill(logits[1] < spread, -math.inf)
    for position, row in enumerate((*logits, rounded, masked)):
        actual = sample_token(row, position=position, **options)  # type: ignore[arg-type]
        assert actual == sample_token_reference(row, position=position, **options), position  # type: ignore[arg-type]


@pytest.mark.parametrize("filters", [{}, {"top_p": 0.9}, {"top_k": 50}, {"min_p": 0.5}])
def test_tokens_excluded_by_a_grammar_are_never_chosen(filters: dict[str, float]) -> None:
    logits = torch.full((300,), -math.inf)
    logits[[7, 250]] = torch.tensor([-500.0, -502.0])
    options = {"temperature": 2.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "seed": 1, **filters}
    sampled = {sample_token(logits, position=position, **options) for position in range(60)}  # type: ignore[arg-type]
    # Token 250 is exp(-2 / 2) = 0.37 times as probable as token 7, so min_p = 0.5 excludes it.
    assert sampled == ({7} if "min_p" in filters else {7, 250})


def test_filters_keep_the_lower_ids_of_equally_likely_tokens() -> None:
    logits = torch.zeros(8)
    for filters in ({"top_k": 3, "top_p": 1.0}, {"top_k": 0, "top_p": 0.375}, {"top_k": 6, "top_p": 0.5}):
        options = {"temperature": 1.0, "min_p": 0.0, "seed": 4, **filters}
        sampled = {sample_token(logits, position=position, **options) for position in range(80)}  # type: ignore[arg-type]
        assert sampled == {0, 1, 2}


def test_greedy_decoding_takes_the_lowest_token_id_of_equal_logits() -> None:
    assert greedy_tokens(torch.tensor([[1.0, 3.0, 3.0], [5.0, 5.0, 0.0]])) == [1, 0]


def test_samples_follow_the_softmax() -> None:
    logits = torch.tensor([1.0, 0.0, -1.0, 2.0, -3.0])
    expected = (logits / 0.8).softmax(-1)
    draws = 4000
    counts = torch.zeros(5)
    for position in range(draws):
        options = {"temperature": 0.8, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
        counts[sample_token(logits, seed=11, position=position, **options)] += 1  # type: ignore[arg-type]

    chi_square = float(((counts - draws * expected) ** 2 / (draws * expected)).sum())
    assert chi_square < 18.47  # 4 degrees of freedom, p = 0.001; the seed is fixed


def test_temperature_zero_selects_the_argmax() -> None:
    options = {"top_k": 0, "top_p": 1.0, "min_p": 0.0, "seed": 3, "position": 9}
    assert sample_token(torch.tensor([0.0, 5.0, 4.9]), temperature=0.0, **options) == 1  # type: ignore[arg-type]


def test_filters_always_keep_the_likeliest_token() -> None:
    kept = kept_tokens(torch.tensor([0.0, 9.0, 1.0]), top_k=1, top_p=0.01, min_p=1.0)
    assert kept.tolist() == [False, True, False]
