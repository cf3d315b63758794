"""QK-norm, rotary embedding and the write to the KV cache, on CUDA. A program processes one query, key or value head.

The input is the product for q, k and v, whose splits are added here.
"""

import triton
import triton.language as tl
from torch import Tensor

from kernels.cuda.parts import Parts, load_product
from kernels.rope import HeadNorms


@triton.jit
def _rope_kernel(
    sums_ptr,
    scales_ptr,
    bias_ptr,
    cosines_ptr,
    sines_ptr,
    positions_ptr,
    slots_ptr,
    q_norm_ptr,
    k_norm_ptr,
    q_ptr,
    k_ptr,
    v_ptr,
    q_stride,
    split_stride,
    eps,
    Hq: tl.constexpr,
    Hkv: tl.constexpr,
    D: tl.constexpr,
    NUM_SPLITS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    HALF: tl.constexpr = D // 2
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    column = tl.arange(0, BLOCK)
    mask = column < HALF
    N = (Hq + 2 * Hkv) * D
    first = head * D + column
    a = load_product(sums_ptr, scales_ptr, bias_ptr, row, first, mask, N, split_stride, NUM_SPLITS)
    b = load_product(sums_ptr, scales_ptr, bias_ptr, row, first + HALF, mask, N, split_stride, NUM_SPLITS)
    slot = tl.load(slots_ptr + row) * Hkv
    if head < Hq + Hkv:
        if q_norm_ptr is not None:
            norm_ptr = q_norm_ptr if head < Hq else k_norm_ptr
            inverse_rms = tl.rsqrt((tl.sum(a * a, 0) + tl.sum(b * b, 0)) / D + eps)
            a = a * inverse_rms * tl.load(norm_ptr + column, mask=mask, other=0.0)
            b = b * inverse_rms * tl.load(norm_ptr + column + HALF, mask=mask, other=0.0)
        angle = tl.load(positions_ptr + row) * HALF + column
        cosine = tl.load(cosines_ptr + angle, mask=mask, other=0.0)
        sine = tl.load(sines_ptr + angle, mask=mask, other=0.0)
        rotated = a * cosine - b * sine
        b = b * cosine + a * sine
        a = rotated
    if head < Hq:
        out_ptr = q_ptr + row * q_stride + first
        tl.store(out_ptr, a, mask=mask)
        tl.store(out_ptr + HALF, b, mask=mask)
    else:
        cache_ptr = k_ptr if head < Hq + Hkv else v_ptr
        cache_row_ptr = cache_ptr + (slot + (head - Hq) % Hkv) * D + column
        tl.store(cache_row_ptr, a.to(cache_ptr.dtype.element_ty), mask=mask)
        tl.store(cache_row_ptr + HALF, b.to(cache_ptr.dtype.element_ty), mask=mask)


def rope_write(
    parts: Parts,
    cosines: Tensor,
    sines: Tensor,
    positions: Tensor,
    slots: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    norms: HeadNorms | None,
    queries: Tensor,
) -> None:
    """Launches `kernels.rope.rope_write`. parts: a product with (Hq + 2 Hkv) D columns.

    queries: at least Hq D columns, float32, each row contiguous. The rotated queries are written to it. It may be
        the memory of the product.
    """
    splits, M, N = parts.sums.shape
    Hkv, D = k_cache.shape[1:]
    if M:
        _rope_kernel[(M, N // D)](
            parts.sums,
            parts.scales,
            parts.bias,
            cosines,
            sines,
            positions,
            slots,
            None if norms is None else norms.query,
            None if norms is None else norms.key,
            queries,
            k_cache,
            v_cache,
            queries.stride(0),
            M * N,
            0.0 if norms is None else norms.eps,
            Hq=N // D - 2 * Hkv,
            Hkv=Hkv,
            D=D,
            NUM_SPLITS=splits,
            BLOCK=triton.next_power_of_2(D // 2),
            num_warps=1,
        )
