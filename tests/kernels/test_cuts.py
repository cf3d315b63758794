"""The bits of an output do not depend on which other outputs are computed, so ranks may divide the outputs of a model.

Shape letters: x [M, K], weight [N, K], Hq query heads and Hkv KV heads of dimension D.
"""

import itertools
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from kernels.attention import AttentionRows, attention
from kernels.cpu.library import library
from kernels.experts import Expert, Experts, add_experts, mix_experts
from kernels.linear import LinearWeight, linear, pack, pack_int4, pack_int8, unpack
from kernels.norm import rms_norm
from kernels.rope import HeadNorms, rope_write
from kernels.swiglu import swiglu

DTYPES = [torch.float32, torch.bfloat16]
PACKS = [pack, pack_int8, pack_int4]
ROW_COUNTS = (1, 7, 19)
# Bounds of parts of 200 outputs: whole blocks of 32, half blocks, and parts whose last block is not full.
CUTS = [(0, 64, 128, 192, 200), (0, 16, 112, 160, 200), (0, 48, 96, 144, 200), (0, 200)]


def make(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.fixture(autouse=True)
def compiled() -> None:
    assert library() is not None, "the tests need a C compiler"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("pack_weight", PACKS)
@pytest.mark.parametrize("with_bias", [False, True])
def test_a_product_of_some_outputs_has_the_same_bits_as_the_whole_product(
    dtype: torch.dtype, pack_weight: Callable[..., LinearWeight], with_bias: bool
) -> None:
    weight, bias = make(200, 288, seed=1).to(dtype), make(200, seed=2) if with_bias else None
    whole = pack_weight(weight, bias)
    for M in ROW_COUNTS:
        x, base = make(M, 288, seed=3).to(dtype), make(M, 200, seed=4)
        product, added = linear(x, whole), linear(x, whole, add_to=base.clone())
        for cut in CUTS:
            for first, last in itertools.pairwise(cut):
                part = pack_weight(weight[first:last], None if bias is None else bias[first:last])
                own = base[:, first:last].clone(memory_format=torch.contiguous_format)
                assert torch.equal(linear(x, part), product[:, first:last]), (M, first, last)
                assert torch.equal(linear(x, part, add_to=own), added[:, first:last]), (M, first, last)


@pytest.mark.parametrize("dtype", DTYPES)
def test_swiglu_of_some_columns_gives_the_same_bits_as_swiglu_of_all_columns(dtype: torch.dtype) -> None:
    gate, up = make(5, 200, seed=1), make(5, 200, seed=2)
    whole = swiglu(torch.cat((gate, up), dim=1), dtype)
    for cut in CUTS:
        for first, last in itertools.pairwise(cut):
            part = swiglu(torch.cat((gate[:, first:last], up[:, first:last]), dim=1), dtype)
            assert torch.equal(part, whole[:, first:last]), (first, last)


def _rows(num_positions: int) -> AttentionRows:
    """Returns rows of one sequence that attend to 1, 7, 13, ... keys, and two rows with a path of drafted tokens."""
    lengths = [*range(1, num_positions, 6), num_positions, num_positions]
    drafted = [0] * (len(lengths) - 2) + [1, 2]
    return AttentionRows(
        slot_tables=torch.arange(num_positions, dtype=torch.int32).unsqueeze(0),
        seqs=torch.zeros(len(lengths), dtype=torch.int64),
        prefix_lens=torch.tensor(lengths) - torch.tensor(drafted),
        paths=torch.tensor([[num_positions - 2, num_positions - 1]] * len(lengths), dtype=torch.int32),
        path_lens=torch.tensor(drafted),
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("Hq", "Hkv"), [(9, 3), (8, 2), (8, 8), (16, 1)])
def test_attention_of_some_heads_gives_the_same_bits_as_attention_of_all_heads(
    dtype: torch.dtype, Hq: int, Hkv: int
) -> None:
    num_positions, D = 1100, 32  # more than one span of 1,024 positions
    rows = _rows(num_positions)
    q = make(rows.seqs.shape[0], Hq, D, seed=1)
    k, v = make(num_positions, Hkv, D, seed=2).to(dtype), make(num_positions, Hkv, D, seed=3).to(dtype)
    whole, per_kv_head = attention(q, k, v, rows), Hq // Hkv
    for kv in range(Hkv):
        own_k, own_v, first = k[:, kv : kv + 1].contiguous(), v[:, kv : kv + 1].contiguous(), kv * per_kv_head
        for count in (n for n in range(1, per_kv_head + 1) if per_kv_head % n == 0):
            for start in range(first, first + per_kv_head, count):
                heads = slice(start, start + count)
                part = attention(q[:, heads].contiguous(), own_k, own_v, rows)
                assert torch.equal(part, whole[:, heads]), (kv, heads)


@pytest.mark.parametrize("dtype", DTYPES)
def test_rope_write_of_some_heads_gives_the_same_bits_as_rope_write_of_all_heads(dtype: torch.dtype) -> None:
    M, Hq, Hkv, D = 5, 6, 3, 32
    norms = HeadNorms(make(D, seed=5), make(D, seed=6), 1e-6)
    tables, positions, slots = (make(9, D // 2, seed=7), make(9, D // 2, seed=8)), torch.arange(M) + 3, torch.arange(M)
    qkv = make(M, Hq + 2 * Hkv, D, seed=9)
    whole, keys, values = qkv.flatten(1), *(torch.zeros(M, Hkv, D, dtype=dtype) for _ in range(2))
    kept = qkv.clone()
    rope_write(whole, *tables, positions, slots, keys, values, norms)
    for kv in range(Hkv):
        chosen = [2 * kv, 2 * kv + 1, Hq + kv, Hq + Hkv + kv]
        part = kept[:, chosen].flatten(1)
        own_keys, own_values = torch.zeros(M, 1, D, dtype=dtype), torch.zeros(M, 1, D, dtype=dtype)
        rope_write(part, *tables, positions, slots, own_keys, own_values, norms)
        assert torch.equal(part.view(M, 4, D)[:, :2], whole.view(M, -1, D)[:, 2 * kv : 2 * kv + 2])
        assert torch.equal(own_keys[:, 0], keys[:, kv])
        assert torch.equal(own_values[:, 0], values[:, kv])


@pytest.mark.parametrize("dtype", DTYPES)
def test_experts_that_are_cut_by_their_outputs_give_the_same_bits_as_whole_experts(dtype: torch.dtype) -> None:
    M, E, K, H, intermediate = 9, 6, 4, 80, 96
    weights = [(make(2 * intermediate, H, seed=e), make(H, intermediate, seed=20 + e)) for e in range(E)]
    experts = Experts([Expert(pack(gate_up.to(dtype)), pack(down.to(dtype))) for gate_up, down in weights])
    x, shares = make(M, H, seed=50).to(dtype), make(M, K, seed=51).softmax(1)
    chosen = torch.stack([torch.randperm(E, generator=torch.Generator().manual_seed(m))[:K] for m in range(M)])
    assert experts.structure is not None
    whole, activated = mix_experts(x, chosen, shares, experts), torch.empty(M, K, intermediate, dtype=dtype)
    for first, last in ((0, 48), (48, 96)):
        for m, k in itertools.product(range(M), range(K)):
            gate, up = weights[chosen[m, k]][0].to(dtype).chunk(2)
            part = pack(torch.cat((gate[first:last], up[first:last])))
            activated[m, k, first:last] = swiglu(linear(x[m : m + 1], part), dtype)[0]
    for first, last in ((0, 16), (16, 64), (64, 80)):
        products = torch.empty(M, K, last - first)
        for m, k in itertools.product(range(M), range(K)):
            down = pack(weights[chosen[m, k]][1][first:last].to(dtype))
            products[m, k] = linear(activated[m, k : k + 1], down)[0]
        assert torch.equal(add_experts(products, chosen, shares), whole[:, first:last]), (first, last)


def test_a_norm_of_some_columns_does_not_give_the_same_bits_as_a_norm_of_all_columns() -> None:
    """A counter-example: a norm adds all columns of a row, so in tensor parallelism each rank normalizes whole rows."""
    x, weight = make(4, 200, seed=1), make(200, seed=2)
    whole = rms_norm(x, weight, 1e-6, torch.float32)
    assert not torch.equal(rms_norm(x[:, :96].contiguous(), weight[:96], 1e-6, torch.float32), whole[:, :96])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("N", [31, 32, 100])
def test_an_unpacked_weight_is_the_weight_that_was_packed(dtype: torch.dtype, N: int) -> None:
    weight = make(N, 18, seed=1).to(dtype)
    packed = pack(weight)
    assert torch.equal(unpack(packed), weight)
    assert torch.equal(unpack(replace(packed, data=weight, packed=False)), weight)
