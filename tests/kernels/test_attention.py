"""Attention agrees with the formula, and gives the same bits for chains, trees and plain decoding.

Shape letters: L keys, Hq query heads and Hkv KV heads of dimension D.
"""

import pytest
import torch
from torch import Tensor

from kernels.attention import AttentionRows, attention, last_keys

DTYPES = [torch.float32, torch.bfloat16]


@pytest.fixture(params=["compiled", "reference"])
def implementation(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Runs a test with the compiled kernel and with the reference, which is used if there is no compiled library."""
    if request.param == "reference":
        monkeypatch.setattr("kernels.attention.library", lambda: None)
    return str(request.param)


def make_caches(num_slots: int, Hkv: int, D: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    k, v = torch.randn(2, num_slots, Hkv, D, generator=generator).to(dtype)
    return k.contiguous(), v.contiguous()


def make_rows(table: Tensor, prefix_lens: list[int], paths: list[list[int]]) -> AttentionRows:
    """Makes rows of one sequence. Row i attends to prefix_lens[i] keys in the slot table [1, L] and to its path."""
    width = max(1, *map(len, paths))
    padded = [path + [0] * (width - len(path)) for path in paths]
    return AttentionRows(
        slot_tables=table,
        seqs=torch.zeros(len(paths), dtype=torch.int64),
        prefix_lens=torch.tensor(prefix_lens),
        paths=torch.tensor(padded, dtype=torch.int32),
        path_lens=torch.tensor([len(path) for path in paths]),
    )


def float64_attention(q: Tensor, k: Tensor, v: Tensor, slots: list[int], sinks: Tensor | None = None) -> Tensor:
    """Computes one row's attention [Hq, D] in float64 with the textbook formula."""
    group = q.shape[0] // k.shape[1]
    keys, values = (cache[slots].double().repeat_interleave(group, dim=1) for cache in (k, v))  # [L, Hq, D]
    scores = torch.einsum("hd,lhd->hl", q.double(), keys) * q.shape[1] ** -0.5
    if sinks is not None:
        scores = torch.cat((scores, sinks.double().unsqueeze(1)), dim=1)
    return torch.einsum("hl,lhd->hd", scores.softmax(-1)[:, : len(slots)], values)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("Hq", "Hkv", "D"), [(9, 3, 64), (4, 4, 128), (2, 1, 16), (4, 2, 8)])
def test_attention_agrees_with_the_formula(implementation: str, dtype: torch.dtype, Hq: int, Hkv: int, D: int) -> None:
    k, v = make_caches(64, Hkv, D, dtype)
    table = torch.randperm(64, generator=torch.Generator().manual_seed(1)).to(torch.int32).view(1, -1)
    lengths = [1, 2, 15, 16, 17, 31, 32, 33, 48]  # both sides of the multiples of 16, the kernel's block size
    paths = [[], [60], [61, 62], [], [63], [], [60, 61], [], []]
    q = torch.randn(len(lengths), Hq, D, generator=torch.Generator().manual_seed(2))

    out = attention(q, k, v, make_rows(table, lengths, paths))

    for row, (length, path) in enumerate(zip(lengths, paths, strict=True)):
        expected = float64_attention(q[row], k, v, table[0, :length].tolist() + path)
        tolerance = 1e-5 if dtype == torch.float32 else 2e-2  # bfloat16 rounds outputs, which reach 4, by up to 2 ** -7
        torch.testing.assert_close(out[row].double(), expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("dtype", DTYPES)
def test_keys_in_the_slot_table_and_keys_on_the_path_give_the_same_bits(
    implementation: str, dtype: torch.dtype
) -> None:
    k, v = make_caches(80, 3, 64, dtype)
    table = torch.arange(80, dtype=torch.int32).view(1, -1)
    q = torch.randn(1, 9, 64, generator=torch.Generator().manual_seed(3))
    plain = attention(q, k, v, make_rows(table, [45], [[]]))

    for prefix_len in (45, 44, 40, 33, 32, 31, 1):
        path = list(range(prefix_len, 45))
        assert torch.equal(attention(q, k, v, make_rows(table, [prefix_len], [path])), plain), prefix_len


def test_the_order_of_slots_in_the_cache_does_not_change_the_result(implementation: str) -> None:
    k, v = make_caches(80, 3, 64, torch.bfloat16)
    order = torch.randperm(80, generator=torch.Generator().manual_seed(4))
    scattered_k, scattered_v = torch.empty_like(k), torch.empty_like(v)
    scattered_k[order], scattered_v[order] = k, v
    q = torch.randn(2, 9, 64, generator=torch.Generator().manual_seed(3))
    in_order = torch.arange(80, dtype=torch.int32).view(1, -1)

    actual = attention(q, scattered_k, scattered_v, make_rows(order.to(torch.int32).view(1, -1), [50, 17], [[], []]))

    assert torch.equal(actual, attention(q, k, v, make_rows(in_order, [50, 17], [[], []])))


def test_the_result_of_a_row_does_not_depend_on_the_other_rows(implementation: str) -> None:
    k, v = make_caches(80, 3, 64, torch.bfloat16)
    table = torch.arange(80, dtype=torch.int32).view(1, -1)
    q = torch.randn(20, 9, 64, generator=torch.Generator().manual_seed(5))
    lengths = [(7 * row) % 70 + 1 for row in range(20)]
    whole = attention(q, k, v, make_rows(table, lengths, [[]] * 20))

    for row in range(20):
        single = attention(q[row : row + 1].contiguous(), k, v, make_rows(table, [lengths[row]], [[]]))
        assert torch.equal(single[0], whole[row]), row


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("Hq", "D"), [(9, 64), (3, 128), (36, 64), (9, 96), (9, 48)])
def test_rows_that_share_a_long_prefix_have_the_same_bits_as_single_rows(dtype: torch.dtype, Hq: int, D: int) -> None:
    k, v = make_caches(160, 3, D, dtype)
    table = torch.randperm(160, generator=torch.Generator().manual_seed(6)).to(torch.int32).view(1, -1)
    q = torch.randn(13, Hq, D, generator=torch.Generator().manual_seed(7))
    prefixes = [130] * 6 + list(range(120, 127))  # a tree, and the rows of a prompt
    paths = [[150], [150, 151], [150, 152], [150, 151, 153], [], [154], *([[]] * 7)]
    whole = attention(q, k, v, make_rows(table, prefixes, paths))

    for row, (prefix, path) in enumerate(zip(prefixes, paths, strict=True)):
        single = attention(q[row : row + 1].contiguous(), k, v, make_rows(table, [prefix], [path]))
        assert torch.equal(single[0], whole[row]), row


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("Hq", "D"), [(9, 64), (36, 48)])
def test_a_row_with_several_spans_of_keys_has_the_same_bits_in_any_pass(dtype: torch.dtype, Hq: int, D: int) -> None:
    """In a pass of few rows, several threads share the spans of a row. In a pass of many rows, one thread has all."""
    k, v = make_caches(2100, 3, D, dtype)
    table = torch.randperm(2100, generator=torch.Generator().manual_seed(8)).to(torch.int32).view(1, -1)
    prefixes = [1, 1022, 1023, 1024, 1025, 2046, 2047, 2048, 2049, 2090] * 12
    paths = [[2095, 2096] if row % 3 == 0 else [] for row in range(len(prefixes))]
    q = torch.randn(len(prefixes), Hq, D, generator=torch.Generator().manual_seed(9))
    whole = attention(q, k, v, make_rows(table, prefixes, paths))

    for start in (0, 10, 60):
        few = slice(start, start + 8)
        some = attention(q[few].contiguous(), k, v, make_rows(table, prefixes[few], paths[few]))
        assert torch.equal(some, whole[few])
        for row in range(start, start + 8):
            single = attention(q[row : row + 1].contiguous(), k, v, make_rows(table, [prefixes[row]], [paths[row]]))
            assert torch.equal(single[0], whole[row]), row
            expected = float64_attention(q[row], k, v, table[0, : prefixes[row]].tolist() + paths[row])
            tolerance = 1e-5 if dtype == torch.float32 else 2e-2
            torch.testing.assert_close(whole[row].double(), expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("dtype", DTYPES)
def test_sinks_take_part_in_the_softmax_of_each_row_independently_of_other_rows(
    implementation: str, dtype: torch.dtype
) -> None:
    k, v = make_caches(1100, 3, 64, dtype)
    table = torch.randperm(1100, generator=torch.Generator().manual_seed(1)).to(torch.int32).view(1, -1)
    q = torch.randn(5, 9, 64, generator=torch.Generator().manual_seed(2))
    sinks = torch.tensor([-torch.inf, -90.0, -1.0, 0.0, 0.5, 3.0, 8.0, 90.0, 1000.0])
    lengths, paths = [1, 17, 40, 1025, 1090], [[], [1095], [1095, 1096], [], [1095]]
    out = attention(q, k, v, make_rows(table, lengths, paths), sinks)

    for row, (length, path) in enumerate(zip(lengths, paths, strict=True)):
        expected = float64_attention(q[row], k, v, table[0, :length].tolist() + path, sinks)
        tolerance = 1e-5 if dtype == torch.float32 else 2e-2
        torch.testing.assert_close(out[row].double(), expected, rtol=0, atol=tolerance)
        single = attention(q[row : row + 1].contiguous(), k, v, make_rows(table, [length], [path]), sinks)
        assert torch.equal(single[0], out[row]), row


def test_sinks_for_a_wrong_number_of_heads_are_refused() -> None:
    k, v = make_caches(8, 3, 16, torch.float32)
    rows = make_rows(torch.zeros(1, 8, dtype=torch.int32), [1], [[]])
    with pytest.raises(ValueError, match=r"sinks must be .*\[9\]"):
        attention(torch.ones(1, 9, 16), k, v, rows, torch.zeros(3))


def test_query_heads_that_are_not_a_multiple_of_the_kv_heads_are_refused() -> None:
    k, v = make_caches(8, 3, 16, torch.float32)
    rows = make_rows(torch.zeros(1, 8, dtype=torch.int32), [1], [[]])
    with pytest.raises(ValueError, match=r"q must be float32 \[1, n \* 3, 16\].*got torch.float32 \[1, 4, 16\]"):
        attention(torch.ones(1, 4, 16), k, v, rows)


@pytest.mark.parametrize("window", [1, 15, 16, 17, 33, 100])
def test_a_window_keeps_only_the_last_keys_of_each_row_in_their_order(window: int) -> None:
    rows = make_rows_with_paths()
    windowed = last_keys(rows, window)
    for row in range(rows.seqs.shape[0]):
        assert windowed.slots(row).tolist() == rows.slots(row)[-window:].tolist(), row
    windowed.check()


def make_rows_with_paths() -> AttentionRows:
    """Makes rows of two sequences: with short and long prefixes, without a path and with paths of up to 20 nodes."""
    generator = torch.Generator().manual_seed(0)
    return AttentionRows(
        slot_tables=torch.randperm(128, generator=generator).to(torch.int32).view(2, 64),
        seqs=torch.tensor([0, 0, 0, 1, 1, 1]),
        prefix_lens=torch.tensor([1, 40, 64, 16, 30, 7]),
        paths=torch.randint(128, 256, (6, 20), generator=generator).to(torch.int32),
        path_lens=torch.tensor([0, 0, 1, 20, 3, 19]),
    )
