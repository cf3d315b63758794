"""The CUDA decoder gives the same bits as its operations called one after the other, and agrees with the reference."""

from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from kernels.cuda import attention, linear, norm, parts, rope, swiglu
from kernels.cuda.decoder import decoder
from kernels.decoder import DecoderLayers, DecoderRows, decoder_reference
from kernels.linear import LinearWeight
from kernels.rope import HeadNorms
from tests.kernels.cuda.device import DEVICE, DTYPES, HAS_GPU
from tests.kernels.cuda.test_attention import on_device
from tests.kernels.test_decoder import HKV, SLOTS, D, H, make_layers, make_rows

Decoder = Callable[..., tuple[Tensor, Tensor | None]]


def _linear(x: Tensor, weight: LinearWeight, *, add_to: Tensor | None = None) -> Tensor:
    return linear.linear(x, weight.data, weight.scales, weight.bias, add_to)


def _rope_write(
    qkv: Tensor,
    cosines: Tensor,
    sines: Tensor,
    positions: Tensor,
    slots: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    norms: HeadNorms | None,
) -> None:
    product = parts.Parts(sums=qkv.unsqueeze(0))
    rope.rope_write(product, cosines, sines, positions, slots, k_cache, v_cache, norms, qkv)


def _swiglu(x: Tensor, dtype: torch.dtype) -> Tensor:
    return swiglu.swiglu(parts.Parts(sums=x.unsqueeze(0)), dtype)


def use_cuda_kernels_in_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a GPU, makes the reference call the interpreted CUDA kernels instead of the CPU kernels."""
    if not HAS_GPU:
        for name, operation in (
            ("linear", _linear),
            ("rope_write", _rope_write),
            ("swiglu", _swiglu),
            ("attention", attention.attention),
            ("rms_norm", norm.rms_norm),
        ):
            monkeypatch.setattr(f"kernels.decoder.{name}", operation)


def on_device_record(value: Any) -> Any:
    """Returns a copy of a tensor or of a dataclass object, with all tensors on the device."""
    if isinstance(value, Tensor):
        return value.to(DEVICE)
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{field.name: on_device_record(getattr(value, field.name)) for field in fields(value)})
    return value


def unpacked_layers(monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, *, int8: bool) -> DecoderLayers:
    """Makes layers on the device, whose weights do not have the layout of the CPU kernels."""
    monkeypatch.setattr("kernels.linear.library", lambda: None)
    layers = make_layers(dtype, head_norms=True, bias=True, int8=int8)
    tables = (layers.final_norm, layers.cosines, layers.sines)
    return DecoderLayers(
        layers.shape, tuple(map(on_device_record, layers.layers)), *(table.to(DEVICE) for table in tables)
    )


def run(function: Decoder, layers: DecoderLayers, M: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(2)
    dtype = layers.shape.dtype
    keys, values = (
        [torch.randn(SLOTS, HKV, D, generator=generator).to(DEVICE, dtype) for _ in layers.layers] for _ in range(2)
    )
    residual = torch.randn(M, H, generator=torch.Generator().manual_seed(1)).to(DEVICE)
    host = make_rows(M)
    rows = DecoderRows(host.positions.to(DEVICE), host.slots.to(DEVICE), on_device(host.attention))
    hidden, taps = function(layers, residual, rows, keys, values, (3, 0, 1), qkv_prefix=None)
    assert taps is not None
    return [hidden, taps, *keys, *values]  # keys and values are the caches to which the pass has written


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("int8", [False, True])
def test_the_decoder_gives_the_same_bits_as_its_operations_called_one_by_one(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, int8: bool
) -> None:
    layers = unpacked_layers(monkeypatch, dtype, int8=int8)
    use_cuda_kernels_in_reference(monkeypatch)
    monkeypatch.setattr("kernels.cuda.decoder.attention", attention.attention)
    for actual, single in zip(run(decoder, layers, 5), run(decoder_reference, layers, 5), strict=True):
        assert torch.equal(actual, single)


def test_the_decoder_agrees_with_the_reference_within_a_tolerance(monkeypatch: pytest.MonkeyPatch) -> None:
    layers = unpacked_layers(monkeypatch, torch.float32, int8=False)
    reference = run(decoder_reference, layers, 17)
    monkeypatch.setattr("kernels.cuda.decoder.attention", attention.attention)
    for actual, expected in zip(run(decoder, layers, 17), reference, strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_result_of_a_row_does_not_depend_on_the_number_of_rows(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype
) -> None:
    layers = unpacked_layers(monkeypatch, dtype, int8=False)
    monkeypatch.setattr("kernels.cuda.decoder.attention", attention.attention)
    whole, single = run(decoder, layers, 17)[:2], run(decoder, layers, 1)[:2]
    for one_row, all_rows in zip(single, whole, strict=True):
        assert torch.equal(one_row, all_rows[:1])
