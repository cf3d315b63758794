"""Attention on CUDA agrees with the formula, and gives the same bits for chains, trees and plain decoding.

Shape letters: Hq query heads and Hkv KV heads of dimension D.
"""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

import kernels.cuda.attention as kernel_module
from kernels.attention import AttentionRows
from kernels.cuda.attention import attention
from kernels.cuda.row_tiles import row_tiles
from tests.kernels.cuda.device import DEVICE, DTYPES, make
from tests.kernels.test_attention import float64_attention, make_rows


def on_device(rows: AttentionRows) -> AttentionRows:
    names = ("slot_tables", "seqs", "prefix_lens", "paths", "path_lens")
    return AttentionRows(**{name: getattr(rows, name).to(DEVICE) for name in names})


def attend(q: Tensor, k: Tensor, v: Tensor, table: Tensor, lengths: list[int], paths: list[list[int]]) -> Tensor:
    return attention(q, k, v, on_device(make_rows(table, lengths, paths)))


def shuffled_table(count: int) -> Tensor:
    """Returns a slot table [1, count] of one sequence, whose positions lie in the cache in random order."""
    return torch.randperm(count, generator=torch.Generator().manual_seed(1)).to(torch.int32).view(1, -1)


# The prefix length of each row, and the slots of its path. The lengths are on both sides of multiples of 64, where the
# tail starts, and of 256, the length of a split.
LENGTHS = [1, 2, 63, 64, 65, 127, 128, 129, 191, 192, 383, 384, 385, 10]
PATHS = [[], [60], [61, 62], [], [63], [], [60, 61], [], list(range(64)), [], [5], list(range(40)), [], [400]]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("Hq", "Hkv", "D"), [(9, 3, 64), (4, 4, 128), (7, 1, 16), (4, 2, 8), (20, 1, 24)])
def test_attention_agrees_with_the_formula(dtype: torch.dtype, Hq: int, Hkv: int, D: int) -> None:
    k, v = make(410, Hkv, D, seed=1, dtype=dtype), make(410, Hkv, D, seed=2, dtype=dtype)
    q, table = make(len(LENGTHS), Hq, D, seed=3).to(dtype).float(), shuffled_table(410)

    out = attend(q, k, v, table, LENGTHS, PATHS)

    assert out.dtype == dtype
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2  # bfloat16: rounding of weights and of outputs up to 4
    for row, (length, path) in enumerate(zip(LENGTHS, PATHS, strict=True)):
        expected = float64_attention(q[row], k, v, table[0, :length].tolist() + path)
        torch.testing.assert_close(out[row].double(), expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("dtype", DTYPES)
def test_long_contexts_agree_with_the_formula(dtype: torch.dtype) -> None:
    k, v = make(3300, 1, 16, seed=1, dtype=dtype), make(3300, 1, 16, seed=2, dtype=dtype)
    q, table = make(3, 2, 16, seed=3).to(dtype).float(), shuffled_table(3300)
    lengths = [2111, 2112, 3200]
    # The prefixes have 1984, 2048 and 3136 positions. The last one exceeds 8 splits of 256 positions, so it also has
    # splits of 1024.

    out = attend(q, k, v, table, lengths, [[], [], []])

    for row, length in enumerate(lengths):
        expected = float64_attention(q[row], k, v, table[0, :length].tolist())
        torch.testing.assert_close(out[row].double(), expected, rtol=0, atol=1e-5 if dtype == torch.float32 else 5e-3)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("length", [45, 150, 384])
def test_keys_in_the_slot_table_and_keys_on_the_path_give_the_same_bits(dtype: torch.dtype, length: int) -> None:
    k, v = make(400, 3, 64, seed=1, dtype=dtype), make(400, 3, 64, seed=2, dtype=dtype)
    table, q = torch.arange(400, dtype=torch.int32).view(1, -1), make(1, 9, 64, seed=3)
    plain = attend(q, k, v, table, [length], [[]])

    for path_len in (1, 5, 31, 44):
        path = list(range(length - path_len, length))
        assert torch.equal(attend(q, k, v, table, [length - path_len], [path]), plain), path_len


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_order_of_slots_in_the_cache_does_not_change_the_result(dtype: torch.dtype) -> None:
    k, v = make(300, 3, 64, seed=1, dtype=dtype), make(300, 3, 64, seed=2, dtype=dtype)
    order = shuffled_table(300)
    scattered_k, scattered_v = torch.empty_like(k), torch.empty_like(v)
    scattered_k[order[0].long()], scattered_v[order[0].long()] = k, v
    in_order, q = torch.arange(300, dtype=torch.int32).view(1, -1), make(2, 9, 64, seed=3)

    actual = attend(q, scattered_k, scattered_v, order, [250, 17], [[], []])

    assert torch.equal(actual, attend(q, k, v, in_order, [250, 17], [[], []]))


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_result_of_a_row_does_not_depend_on_rows_of_the_same_or_another_sequence(dtype: torch.dtype) -> None:
    k, v = make(700, 2, 32, seed=1, dtype=dtype), make(700, 2, 32, seed=2, dtype=dtype)
    tables = torch.arange(700, dtype=torch.int32).flip(0).view(2, 350).contiguous()
    seqs = [0] * 23 + [1] * 7  # 23 rows of sequence 0, 7 of sequence 1
    lengths = [(37 * row) % 330 + 1 for row in range(30)]  # not sorted
    q = make(30, 8, 32, seed=5)

    def select(part: slice) -> AttentionRows:
        return AttentionRows(
            tables,
            torch.tensor(seqs[part]),
            torch.tensor(lengths[part]),
            torch.zeros(len(seqs[part]), 1, dtype=torch.int32),
            torch.zeros(len(seqs[part]), dtype=torch.int64),
        )

    whole = attention(q, k, v, on_device(select(slice(30))))

    for part in (slice(0, 1), slice(20, 25), slice(29, 30), slice(3, 20)):
        partial = attention(q[part].contiguous(), k, v, on_device(select(part)))
        assert torch.equal(partial, whole[part]), part


def test_max_seqs_and_max_keys_reduce_the_launched_programs_and_change_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    k, v = make(2600, 1, 16, seed=1), make(2600, 1, 16, seed=2)
    q = make(16, 4, 16, seed=3)
    tables = torch.arange(2600, dtype=torch.int32).expand(17, 2600).contiguous()  # as in a server for 16 sequences
    rows = on_device(make_rows(tables, [300 + 60 * row for row in range(16)], [[]] * 16))
    grids: list[tuple[int, ...]] = []

    class Counting:
        def __getitem__(self, grid: tuple[int, ...]) -> object:
            grids.append(grid)
            return prefix_kernel[grid]

    prefix_kernel = kernel_module._prefix_kernel
    monkeypatch.setattr(kernel_module, "_prefix_kernel", Counting())
    without = attention(q, k, v, rows)
    bounded = attention(q, k, v, replace(rows, max_seqs=1, max_keys=1200))

    assert torch.equal(bounded, without)
    # Without the bounds, each of the 16 rows could belong to another sequence, so 16 groups of rows are launched. With
    # max_seqs=1, the 16 rows form one group. Prefixes of 2,496 and of 1,088 positions have 9 and 5 splits.
    assert grids == [(16, 1, 9), (1, 1, 5)]


def test_splitting_a_pass_into_several_launches_does_not_change_its_rows() -> None:
    k, v = make(100, 1, 16, seed=1), make(100, 1, 16, seed=2)
    q = make(258, 1, 16, seed=3)  # a launch has at most 256 rows
    table = torch.arange(100, dtype=torch.int32).view(1, -1)
    lengths = [row % 100 + 1 for row in range(258)]
    out = attend(q, k, v, table, lengths, [[]] * 258)
    for row in (0, 255, 256, 257):
        assert torch.equal(attend(q[row : row + 1], k, v, table, [lengths[row]], [[]])[0], out[row]), row


def test_slots_at_offsets_above_2_to_the_31_are_addressed_correctly() -> None:
    far = 2**27 + 3  # slots of 16 numbers each: the offset of this slot exceeds 2**31
    cache = torch.empty(far + 2, 1, 16, device=DEVICE)  # pages that are never written use no memory
    cache[far:] = make(2, 1, 16, seed=1)
    table, q = torch.tensor([[far, far + 1]], dtype=torch.int32), make(1, 1, 16, seed=2)
    out = attend(q, cache, cache, table, [1], [[far + 1]])
    torch.testing.assert_close(
        out[0].double(), float64_attention(q[0], cache, cache, [far, far + 1]), rtol=0, atol=1e-5
    )


def test_a_path_of_more_than_64_nodes_is_refused() -> None:
    k, q = make(80, 1, 16, seed=1), make(1, 1, 16, seed=2)
    with pytest.raises(ValueError, match="at most 64 nodes, got 65"):
        attend(q, k, k, torch.zeros(1, 80, dtype=torch.int32), [1], [list(range(65))])


@pytest.mark.parametrize(
    ("keys", "rows", "tiles"),
    [
        ([3, 3, 3, 5, 5], 2, [[0, 2], [2, 1], [3, 2]]),
        ([3, 3, 3, 5, 5], 1, [[0, 1], [1, 1], [2, 1], [3, 1], [4, 1]]),
        ([3, 3, 3, 5, 5], 16, [[0, 3], [3, 2]]),
        ([7], 4, [[0, 1]]),
    ],
)
def test_tiles_contain_adjacent_rows_with_the_same_key(keys: list[int], rows: int, tiles: list[list[int]]) -> None:
    actual = row_tiles(torch.tensor(keys, device=DEVICE), rows, 4).tolist()
    assert actual[: len(tiles)] == tiles
    assert all(count == 0 for _, count in actual[len(tiles) :])  # unused tiles have no rows
