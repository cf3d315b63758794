"""A linear layer whose result for a row does not depend on the number of rows.

    out[m, n] = (sum_k x[m, k] weight[n, k]) scale[n] + bias[n], accumulated in float32 and returned as float32

Prefill, decoding and verification all use this operation, so a token has the same bits in each of them. `out` is never
rounded to bfloat16 here: if the model needs that, the operation that reads `out` does it.

x is [M, K] and the weight [N, K]. The weight has the dtype of x, or it is int8 or float8_e4m3fn with one scale per
row, or int4 with one scale for each row and each group of 32 columns. x is never quantized. bfloat16 represents all
int4, int8 and float8 numbers exactly, so the product is computed as with a bfloat16 weight and then multiplied by the
scale; with int4, the sum of each group is multiplied by its scale.
"""

import ctypes
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from kernels.checks import DTYPE_CODES, check_tensor, dtype_code
from kernels.cpu.library import library
from kernels.memory import empty

_BLOCK = 32  # outputs per packed block, as in cpu/linear.c
_CHUNK = 1 << 19  # how many numbers are converted at once; bounds the memory of intermediate results
_ROW_TILE = 16  # a fixed number of rows, because torch's order of additions depends on that number
_INT8_CODE = 2  # cpu/common.h
_INT8_MAX = 127
_INT4_CODE = 3
INT4_GROUP = 32  # columns with a common scale
_INT4_MIN, _INT4_MAX = -8, 7


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearWeight:
    """A weight [N, K] in the layout of `linear`; created by one of the functions `pack...`."""

    data: Tensor
    scales: Tensor | None  # [N] float32, only with int4, int8 and float8
    bias: Tensor | None  # [N] float32
    out_features: int
    in_features: int
    dtype: torch.dtype  # dtype of x
    packed: bool
    int4: bool = False
    group_scales: Tensor | None = None  # [N, K / 32] float16, only with int4 that is not packed

    @property
    def format_name(self) -> str:
        """Returns the name of the format of the weights, as reports show it."""
        if self.int4:
            return "int4"
        stored = torch.int8 if self.scales is not None and self.packed else self.data.dtype
        return str(stored).removeprefix("torch.")

    @property
    def format(self) -> int:
        """Returns the number that the C kernels use for the format of `data`."""
        if self.int4:
            return _INT4_CODE
        return _INT8_CODE if self.scales is not None else DTYPE_CODES[self.dtype]


def pack(weight: Tensor, bias: Tensor | None = None) -> LinearWeight:
    """Converts a weight [N, K], float32 or bfloat16, to the layout of the kernel for its device.

    Raises: ValueError: the dtype is neither float32 nor bfloat16, or K is odd in bfloat16.
    """
    dtype_code(weight, "weight")
    if weight.dtype == torch.bfloat16:
        _check_even(weight)
    packed = _has_kernels(weight)
    if not packed:
        data = weight.contiguous()
    elif weight.dtype == torch.bfloat16:
        data = _in_pairs(weight)
    else:
        data = _laid_out(weight, lambda part: _padded(weight[part]).permute(0, 2, 1))  # [blocks, K, 32]
    return _weight(weight, data, None, bias, packed, weight.dtype)


def pack_int8(weight: Tensor, bias: Tensor | None = None) -> LinearWeight:
    """Quantizes a weight [N, K] to int8. x must have the original dtype of the weight.

    scale[n] = max_k |weight[n, k]| / 127, so the error of a weight is at most half of its scale.

    Raises: ValueError: the dtype is neither float32 nor bfloat16, or K is odd.
    """
    dtype_code(weight, "weight")
    scales = _scales(weight, _INT8_MAX)
    rounded = torch.empty_like(weight, dtype=torch.int8)
    for part in _chunks(weight):
        rounded[part] = torch.round(weight[part].float() / scales[part].unsqueeze(1))
    return pack_scaled(rounded, scales, weight.dtype, bias)


def pack_draft(weight: Tensor, bias: Tensor | None = None) -> LinearWeight:
    """Packs a drafter's weight [N, K]. On the CPU, a bfloat16 weight is quantized to int8.

    A product of few rows takes about as long as reading its weight, so int8 is faster. The rounding error can change
    which tokens are drafted, but never an answer.

    Raises: ValueError: the dtype is neither float32 nor bfloat16, or K is odd in bfloat16.
    """
    is_int8 = weight.dtype == torch.bfloat16 and _has_kernels(weight)
    return (pack_int8 if is_int8 else pack)(weight, bias)


def pack_fp8(weight: Tensor, bias: Tensor | None = None) -> LinearWeight:
    """Quantizes a weight [N, K] to float8_e4m3fn, as `pack_int8` does. scale[n] = max_k |weight[n, k]| / 448.

    Only CUDA has a kernel for these weights; other devices use the reference.

    Raises: ValueError: the dtype is neither float32 nor bfloat16.
    """
    dtype_code(weight, "weight")
    scales = _scales(weight, torch.finfo(torch.float8_e4m3fn).max)
    rounded = torch.empty_like(weight, dtype=torch.float8_e4m3fn)
    for part in _chunks(weight):
        rounded[part] = weight[part].float() / scales[part].unsqueeze(1)
    return pack_scaled(rounded, scales, weight.dtype, bias)


def pack_scaled(values: Tensor, scales: Tensor, dtype: torch.dtype, bias: Tensor | None = None) -> LinearWeight:
    """Packs a weight that is already quantized: weight[n, k] = values[n, k] scales[n].

    Args:
        values: [N, K] int8 in -127 .. 127, or float8_e4m3fn.
        scales: [N] float32.
        dtype: the dtype of x.

    Raises: ValueError: an int8 value is -128, or K is odd with int8 values.
    """
    packed = values.dtype == torch.int8 and _has_kernels(values)
    if values.dtype == torch.int8:
        _check_even(values)
        if int(values.min()) < -_INT8_MAX:
            raise ValueError(f"int8 weights must be at least -{_INT8_MAX}")
    data = _in_pairs(values, _stored_int8) if packed else values.contiguous()
    return _weight(values, data, scales.float().contiguous(), bias, packed, dtype)


def pack_int4(weight: Tensor, bias: Tensor | None = None) -> LinearWeight:
    """Quantizes a weight [N, K] on the CPU to int4 in groups of 32 columns.

    In each group, the weight with the largest absolute value becomes -8, so scales may be negative.

    Raises: ValueError: the dtype is neither float32 nor bfloat16, the weight is not on the CPU, or K is not a multiple
        of 32.
    """
    dtype_code(weight, "weight")
    _check_grouped(weight)
    N, K = weight.shape
    values = torch.empty_like(weight, dtype=torch.int8)
    scales = torch.empty(N, K // INT4_GROUP, device=weight.device)
    for part in _chunks(weight):
        groups = weight[part].float().unflatten(1, (-1, INT4_GROUP))  # [N, K / 32, 32]
        extremes = groups.gather(2, groups.abs().argmax(2, keepdim=True)).squeeze(2)
        halves, factors = _split_scales(extremes / _INT4_MIN)
        scales[part] = halves.float() * factors.unsqueeze(1)
        divisors = torch.where(scales[part] == 0, 1.0, scales[part]).unsqueeze(2)
        values[part] = torch.round(groups / divisors).clamp(_INT4_MIN, _INT4_MAX).flatten(1)
    return pack_grouped(values, scales, weight.dtype, bias)


def fits_int4(values: Tensor, scales: Tensor) -> bool:
    """Returns whether `pack_grouped` can represent these values and scales exactly; it refuses others."""
    low, high = values.aminmax()
    halves, factors = _split_scales(scales)
    in_range = int(low) >= _INT4_MIN and int(high) <= _INT4_MAX
    return in_range and torch.equal(halves.float() * factors.unsqueeze(1), scales)


def pack_grouped(values: Tensor, scales: Tensor, dtype: torch.dtype, bias: Tensor | None = None) -> LinearWeight:
    """Packs a weight on the CPU that is already quantized: weight[n, k] = values[n, k] scales[n, k // 32].

    Args:
        values: [N, K] int8, from -8 to 7.
        scales: [N, K / 32] float32.
        dtype: the dtype of x.

    Raises: ValueError: the weight is not on the CPU, K is not a multiple of 32, or `fits_int4` is false.
    """
    _check_grouped(values)
    if values.device.type != "cpu" or not fits_int4(values, scales):
        raise ValueError("int4 weights must be on the CPU, from -8 to 7, with scales that float16 represents exactly")
    halves, factors = _split_scales(scales)
    (N, K), packed = values.shape, _has_kernels(values)
    return LinearWeight(
        data=_in_int4_groups(values, halves) if packed else values.contiguous(),
        scales=factors,
        bias=None if bias is None else bias.float().contiguous(),
        out_features=N,
        in_features=K,
        dtype=dtype,
        packed=packed,
        int4=True,
        group_scales=None if packed else halves,
    )


def _check_grouped(weight: Tensor) -> None:
    if weight.shape[1] % INT4_GROUP:
        raise ValueError(f"int4 weights must have a multiple of {INT4_GROUP} columns, got {weight.shape[1]}")


def _split_scales(scales: Tensor) -> tuple[Tensor, Tensor]:
    """Splits the scales [N, G] into a power of two for each output, [N], and float16 numbers [N, G] from -2 to 2.

    Returns: the float16 numbers and the powers of two.
    """
    largest = scales.abs().amax(1).clamp(min=2.0**-100)
    factors = torch.ldexp(torch.ones_like(largest), torch.frexp(largest).exponent - 1)
    return (scales / factors.unsqueeze(1)).half(), factors


def _in_int4_groups(values: Tensor, halves: Tensor) -> Tensor:
    """[N, K] and [N, K / 32] -> [ceil(N / 32), K / 32, 576] uint8, as cpu/linear.c reads them."""

    def convert(part: slice) -> Tensor:
        shifted = _padded((values[part] - _INT4_MIN).to(torch.uint8))  # [blocks, 32, K]
        blocks, _, K = shifted.shape
        # The comment at `int4_weights` (cpu/tiles_portable.h) explains how the index of a row is split into (half, o)
        # and the index of a column into (group, j, n, p). This n, from 0 to 3, takes two dimensions of the view: its
        # high bit selects one of two bytes, and its low bit selects the low or the high 4 bits of that byte.
        parts = shifted.view(blocks, 2, 16, K // INT4_GROUP, 4, 2, 2, 2).permute(0, 3, 1, 4, 2, 7, 5, 6)
        pairs = (parts[..., 0] | parts[..., 1] << 4).reshape(blocks, K // INT4_GROUP, -1)
        scales = _padded(halves[part]).permute(0, 2, 1).contiguous().view(torch.uint8)  # [blocks, K / 32, 64]
        return torch.cat((scales, pairs), dim=2)

    return _laid_out(values, convert)


def _scales(weight: Tensor, largest: float) -> Tensor:
    """Returns [N]: for each output, its largest absolute weight divided by `largest`."""
    extremes = torch.cat([weight[part].float().abs().amax(1) for part in _chunks(weight)])
    return extremes.clamp(min=torch.finfo(torch.float32).tiny) / largest


def _weight(
    weight: Tensor, data: Tensor, scales: Tensor | None, bias: Tensor | None, packed: bool, dtype: torch.dtype
) -> LinearWeight:
    N, K = weight.shape
    bias = None if bias is None else bias.float().contiguous()
    return LinearWeight(data=data, scales=scales, bias=bias, out_features=N, in_features=K, dtype=dtype, packed=packed)


def _has_kernels(weight: Tensor) -> bool:
    return weight.device.type == "cpu" and library() is not None


def _check_even(weight: Tensor) -> None:
    if weight.shape[1] % 2:
        raise ValueError(f"weight must have an even number of columns, got {weight.shape[1]}")


def _padded(weight: Tensor) -> Tensor:
    """[N, K] -> [ceil(N / 32), 32, K], padded with rows of zeros."""
    N, K = weight.shape
    blocks = -(-N // _BLOCK)
    return functional.pad(weight, (0, 0, 0, blocks * _BLOCK - N)).view(blocks, _BLOCK, K)


def _in_pairs(weight: Tensor, convert: Callable[[Tensor], Tensor] = lambda rows: rows) -> Tensor:
    """[N, K] -> [ceil(N / 32), K / 2, 32, 2]: adjacent pairs of k, as cpu/linear.c reads them.

    convert: changes the format of the weights of a slice of outputs.
    """

    def view(part: slice) -> Tensor:
        padded = _padded(convert(weight[part]))
        return padded.view(*padded.shape[:2], -1, 2).permute(0, 2, 1, 3)

    return _laid_out(weight, view)


def unpack(weight: LinearWeight) -> Tensor:
    """Returns the weight [N, K] that was given to `pack`."""
    if not weight.packed:
        return weight.data
    rows = weight.data if weight.dtype == torch.float32 else weight.data.permute(0, 1, 3, 2)  # [blocks, ..., 32]
    return rows.flatten(1, -2).transpose(1, 2).flatten(0, 1)[: weight.out_features]


def _chunks(weight: Tensor) -> Iterator[slice]:
    """Yields slices of the outputs of a weight [N, K]; all but the last have whole blocks."""
    N, K = weight.shape
    step = max(1, _CHUNK // (K * _BLOCK)) * _BLOCK
    return (slice(start, min(start + step, N)) for start in range(0, N, step))


def _laid_out(weight: Tensor, view: Callable[[slice], Tensor]) -> Tensor:
    """Writes the blocks of 32 outputs of a weight [N, K] to contiguous memory in huge pages.

    view: returns the blocks [ceil(n / 32), ...] of the n outputs in a slice.
    """
    out: Tensor | None = None
    for part in _chunks(weight):
        blocks = view(part)
        if out is None:
            out = empty((-(-weight.shape[0] // _BLOCK), *blocks.shape[1:]), blocks.dtype)
        first = part.start // _BLOCK
        out[first : first + blocks.shape[0]] = blocks
    assert out is not None  # a weight has at least one row, so the loop has run at least once
    return out


def _stored_int8(weight: Tensor) -> Tensor:
    """Converts int8 to the bytes that cpu/linear.c reads: one of two formats, depending on the processor."""
    kernels = library()
    assert kernels is not None  # otherwise no weight is packed
    if ctypes.c_int32.in_dll(kernels, "slipstream_int8_signed").value:
        return weight.view(torch.uint8)
    return weight.abs().to(torch.uint8) + (weight < 0).to(torch.uint8) * 128


def linear_reference(x: Tensor, weight: Tensor, bias: Tensor | None = None, scales: Tensor | None = None) -> Tensor:
    """x [M, K], weight [N, K] in the dtype of x, int8 or float8_e4m3fn, bias and scales [N] float32 -> [M, N] float32.

    The reference always processes 16 rows at a time, so that a row has the same bits in any batch.
    """
    M = x.shape[0]
    padded = functional.pad(x, (0, 0, 0, -M % _ROW_TILE))
    weight = weight.to(x.dtype)  # exact for one-byte weights
    tiles = [functional.linear(tile, weight) for tile in padded.split(_ROW_TILE)]
    out = torch.cat(tiles)[:M].float() if tiles else x.new_zeros(0, weight.shape[0], dtype=torch.float32)
    out = out if scales is None else out * scales
    return out if bias is None else out + bias


def _reference(x: Tensor, weight: LinearWeight) -> Tensor:
    if weight.group_scales is None:
        return linear_reference(x, weight.data, weight.bias, weight.scales)
    scales = weight.group_scales.float().repeat_interleave(INT4_GROUP, 1)
    return linear_reference(x.float(), weight.data.float() * scales, weight.bias, weight.scales)


def linear(x: Tensor, weight: LinearWeight, *, add_to: Tensor | None = None, one_sum: bool = False) -> Tensor:
    """x [M, K] contiguous in the weight's dtype -> [M, N] float32, added to `add_to` in place if given.

    one_sum: whether CUDA computes each output as one sum over K. Otherwise, if N is small, CUDA adds the sums of
        several parts of K. With one sum, logits have the same bits as in the kernels of `kernels.lm_head`.

    Raises: ValueError: shapes or dtypes do not fit.
    """
    M, N, K = x.shape[0], weight.out_features, weight.in_features
    check_tensor(x, "x", (None, K), weight.dtype)
    if add_to is not None:
        check_tensor(add_to, "add_to", (M, N), torch.float32)
    if not weight.packed:
        if x.is_cuda:
            from kernels.cuda.linear import linear as launch  # imported here, because triton requires CUDA

            return launch(x, weight.data, weight.scales, weight.bias, add_to, one_sum=one_sum)
        out = _reference(x, weight)
        return out if add_to is None else add_to.add_(out)
    kernels = library()
    assert kernels is not None  # weights are only packed if the kernels are loaded
    out = torch.empty(M, N) if add_to is None else add_to
    kernels.slipstream_linear(
        x.data_ptr(),
        weight.data.data_ptr(),
        None if weight.scales is None else weight.scales.data_ptr(),
        None if weight.bias is None else weight.bias.data_ptr(),
        out.data_ptr(),
        M,
        N,
        K,
        dtype_code(x, "x"),
        weight.format,
        int(add_to is not None),
    )
    return out
