"""The compiled decoder gives the same bits as its operations called one after the other, for any number of rows.

Shape letters: M rows, HQ query heads and HKV KV heads of dimension D, hidden size H, intermediate size INNER.
"""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from kernels.attention import AttentionRows
from kernels.decoder import DecoderLayers, DecoderRows, DecoderShape, LayerWeights, decoder, decoder_reference
from kernels.experts import Expert, Experts
from kernels.linear import pack as pack_as_is
from kernels.linear import pack_int8
from kernels.moe import Mixture
from kernels.rope import HeadNorms

H, INNER, HQ, HKV, D, SLOTS = 48, 96, 6, 2, 16, 64
NUM_EXPERTS = 5


def make_layers(
    dtype: torch.dtype, *, head_norms: bool, bias: bool, int8: bool = False, mixtures: tuple[int, ...] = ()
) -> DecoderLayers:
    """Makes three layers, of which those in `mixtures` have a mixture of experts."""
    generator = torch.Generator().manual_seed(0)
    pack = pack_int8 if int8 else pack_as_is

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator) * 0.2

    def mixture() -> Mixture:
        experts = [
            Expert(pack(random(2 * INNER, H).to(dtype)), pack(random(H, INNER).to(dtype))) for _ in range(NUM_EXPERTS)
        ]
        router = pack_as_is(random(NUM_EXPERTS, H).to(dtype))
        return Mixture(router=router, num_chosen=2, normalized=bias, experts=Experts(experts))

    def layer(index: int) -> LayerWeights:
        width, dense = (HQ + 2 * HKV) * D, index not in mixtures
        return LayerWeights(
            input_norm=random(H) + 1,
            qkv=pack(random(width, H).to(dtype), random(width) if bias else None),
            head_norms=HeadNorms(random(D) + 1, random(D) + 1, 1e-5) if head_norms else None,
            output=pack(random(H, HQ * D).to(dtype)),
            post_norm=random(H) + 1,
            gate_up=pack(random(2 * INNER, H).to(dtype)) if dense else None,
            down=pack(random(H, INNER).to(dtype)) if dense else None,
            mixture=None if dense else mixture(),
        )

    shape = DecoderShape(
        hidden_size=H, intermediate_size=INNER, num_heads=HQ, num_kv_heads=HKV, head_dim=D, norm_eps=1e-5, dtype=dtype
    )
    angles = torch.outer(torch.arange(100.0), 1.0 / 100 ** (torch.arange(D // 2) / D))
    return DecoderLayers(shape, tuple(map(layer, range(3))), random(H) + 1, angles.cos(), angles.sin())


def make_rows(M: int) -> DecoderRows:
    """Makes the rows of a drafted chain of M tokens after 20 committed positions."""
    positions = torch.arange(20, 20 + M)
    attention = AttentionRows(
        slot_tables=torch.arange(SLOTS, dtype=torch.int32).view(1, -1),
        seqs=torch.zeros(M, dtype=torch.int64),
        prefix_lens=torch.full((M,), 20),
        paths=positions.to(torch.int32).repeat(M, 1).contiguous(),
        path_lens=torch.arange(1, M + 1),
    )
    return DecoderRows(positions, positions.clone(), attention)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("M", [1, 2, 7, 8, 9, 33])
@pytest.mark.parametrize(
    ("head_norms", "bias", "int8"), [(False, False, False), (True, True, False), (True, True, True)]
)
@pytest.mark.parametrize("mixtures", [(), (1,), (0, 1, 2)])
def test_the_compiled_decoder_gives_the_same_bits_as_single_operations(
    dtype: torch.dtype, M: int, head_norms: bool, bias: bool, int8: bool, mixtures: tuple[int, ...]
) -> None:
    layers = make_layers(dtype, head_norms=head_norms, bias=bias, int8=int8, mixtures=mixtures)
    assert layers.structure is not None  # the compiled decoder can run these layers
    residual = torch.randn(M, H, generator=torch.Generator().manual_seed(1))
    results = []
    for function in (decoder, decoder_reference):
        generator = torch.Generator().manual_seed(2)
        keys, values = (
            [torch.randn(SLOTS, HKV, D, generator=generator).to(dtype) for _ in layers.layers] for _ in range(2)
        )
        hidden, taps = function(layers, residual.clone(), make_rows(M), keys, values, (3, 0, 1))
        assert taps is not None
        results.append((hidden, taps, *keys, *values))

    for actual, reference in zip(*results, strict=True):
        assert torch.equal(actual, reference)
    assert results[0][0].float().abs().max() > 0.1  # otherwise the comparison would prove nothing


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("int8", [False, True])
@pytest.mark.parametrize("mixtures", [(), (0, 2)])
def test_the_result_of_a_row_does_not_depend_on_the_number_of_rows(
    dtype: torch.dtype, int8: bool, mixtures: tuple[int, ...]
) -> None:
    layers = make_layers(dtype, head_norms=True, bias=True, int8=int8, mixtures=mixtures)
    residual = torch.randn(40, H, generator=torch.Generator().manual_seed(1))

    def run(M: int) -> list[Tensor]:
        keys, values = ([torch.ones(SLOTS, HKV, D, dtype=dtype) for _ in layers.layers] for _ in range(2))
        hidden, taps = decoder(layers, residual[:M].clone(), make_rows(M), keys, values, (0, 2, 3))
        assert taps is not None
        return [hidden, *taps.unbind(1)]

    whole = run(40)
    assert torch.equal(whole[1], residual.to(dtype))  # the tap of layer 0 is the input
    for M in (*range(1, 26), 31, 32, 33):
        for few_rows, all_rows in zip(run(M), whole, strict=True):
            assert torch.equal(few_rows, all_rows[:M]), M


def test_a_kv_cache_of_the_wrong_shape_is_refused() -> None:
    layers = make_layers(torch.float32, head_norms=False, bias=False)
    caches = [torch.zeros(SLOTS, HKV, D + 1) for _ in layers.layers]
    with pytest.raises(ValueError, match=r"cache must be torch.float32 \[64, 2, 16\], got torch.float32 \[64, 2, 17\]"):
        decoder(layers, torch.zeros(1, H), make_rows(1), caches, caches)


def test_a_tap_layer_above_the_number_of_layers_is_refused() -> None:
    layers = make_layers(torch.float32, head_norms=False, bias=False)
    caches = [torch.zeros(SLOTS, HKV, D) for _ in layers.layers]
    with pytest.raises(ValueError, match=r"tap_layers must be in 0..3, got \[1, 4\]"):
        decoder(layers, torch.zeros(1, H), make_rows(1), caches, caches, (1, 4))


def test_a_layer_without_an_mlp_and_without_experts_is_refused() -> None:
    layers = make_layers(torch.float32, head_norms=False, bias=False)
    broken = replace(layers.layers[1], down=None)
    with pytest.raises(ValueError, match="either gate_up and down, or a mixture of experts"):
        DecoderLayers(layers.shape, (broken,), layers.final_norm, layers.cosines, layers.sines)
