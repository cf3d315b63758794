"""QK-norm, rotary position embedding and the write to the KV cache, as one operation.

In models with QK-norm, such as Qwen3, each head of q and k is first normalized. Then it is rotated: its halves a and b
become a cos - b sin and b cos + a sin, with the cosine and sine of the row's position. Finally, k and v are cast to the
cache's dtype and written to the row's slot.

Source: Su et al. 2021, arXiv:2104.09864, in the half-split layout of Hugging Face's Llama.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.checks import check_tensor, dtype_code
from kernels.cpu.library import library
from kernels.norm import rms_norm_reference


@dataclass(frozen=True, slots=True)
class HeadNorms:
    """QK-norm: weights [D] float32 for queries and keys."""

    query: Tensor
    key: Tensor
    eps: float


def rotate(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Rotates x [..., heads, D] by cosine and sine [..., D / 2]; the result has the shape of x."""
    a, b = x.chunk(2, dim=-1)
    cosine, sine = cosine.unsqueeze(-2), sine.unsqueeze(-2)  # [..., 1, D / 2]
    return torch.cat((a * cosine - b * sine, b * cosine + a * sine), dim=-1)


def rope_write_reference(
    qkv: Tensor,
    cosines: Tensor,
    sines: Tensor,
    positions: Tensor,
    slots: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    norms: HeadNorms | None,
) -> None:
    """Reference of `rope_write`."""
    M = qkv.shape[0]
    num_kv_heads, D = k_cache.shape[1:]
    heads = qkv.view(M, -1, D)  # [M, Hq + 2 Hkv, D]
    num_q_heads = heads.shape[1] - 2 * num_kv_heads
    q, k, v = heads.split((num_q_heads, num_kv_heads, num_kv_heads), dim=1)
    if norms is not None:
        q = rms_norm_reference(q, norms.query, norms.eps, torch.float32)
        k = rms_norm_reference(k, norms.key, norms.eps, torch.float32)
    cosine, sine = cosines[positions], sines[positions]  # [M, D / 2]
    heads[:, :num_q_heads] = rotate(q, cosine, sine)
    k_cache[slots] = rotate(k, cosine, sine).to(k_cache.dtype)
    v_cache[slots] = v.to(v_cache.dtype)


def rope_write(
    qkv: Tensor,
    cosines: Tensor,
    sines: Tensor,
    positions: Tensor,
    slots: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    norms: HeadNorms | None = None,
) -> None:
    """Rotates the queries of `qkv` in place and writes keys and values to the cache.

    Args:
        qkv: [M, (Hq + 2 Hkv) D] float32: Hq query heads, then Hkv key and Hkv value heads. Hq may be 0.
        cosines, sines: [P, D / 2] float32.
        positions: [M] int64, below P. slots: [M] int64; no two rows may have the same slot.
        k_cache, v_cache: [slots, Hkv, D] float32 or bfloat16.

    Raises: ValueError: shapes or dtypes do not fit.
    """
    M, width = qkv.shape
    num_slots, num_kv_heads, D = k_cache.shape
    check_tensor(qkv, "qkv", (M, width), torch.float32)
    check_tensor(positions, "positions", (M,), torch.int64)
    check_tensor(slots, "slots", (M,), torch.int64)
    check_tensor(v_cache, "v_cache", (num_slots, num_kv_heads, D), k_cache.dtype)
    num_q_heads = width // D - 2 * num_kv_heads
    if width % D or num_q_heads < 0 or D % 2:
        raise ValueError(f"qkv must hold Hq + 2 * {num_kv_heads} heads of even size, got {width} columns and size {D}")
    kernels = library() if qkv.device.type == "cpu" else None
    if kernels is None:
        if qkv.is_cuda:
            from kernels.cuda.parts import Parts  # imported here, because triton requires CUDA
            from kernels.cuda.rope import rope_write as launch

            launch(Parts(sums=qkv.unsqueeze(0)), cosines, sines, positions, slots, k_cache, v_cache, norms, qkv)
            return
        rope_write_reference(qkv, cosines, sines, positions, slots, k_cache, v_cache, norms)
        return
    kernels.slipstream_rope_write(
        qkv.data_ptr(),
        cosines.data_ptr(),
        sines.data_ptr(),
        positions.data_ptr(),
        slots.data_ptr(),
        None if norms is None else norms.query.data_ptr(),
        None if norms is None else norms.key.data_ptr(),
        0.0 if norms is None else norms.eps,
        k_cache.data_ptr(),
        v_cache.data_ptr(),
        M,
        num_q_heads,
        num_kv_heads,
        D,
        dtype_code(k_cache, "k_cache"),
    )
