"""Multi-head latent attention in its absorbed form: one latent per position is the key and the value of every head.

    cached per position j:   [c_j | k_j],  c_j = RMSNorm(latent_j),  k_j = rope(key_j)              R + P numbers
    score_hj = [q_h W_h^UK | rope(q'_h)] . [c_j | k_j] * scale;   out_h = (sum_j softmax_j(score_hj) c_j) W_h^UV

The query of head h has N numbers q_h without rotary embedding and P numbers q'_h with it. W_h^UK and W_h^UV map c to
the keys (N numbers) and values (V numbers) of the head. The absorbed form does not compute these keys and values. It
applies W_h^UK to the query and W_h^UV to the result instead, so that only [c | k] is stored and read.

Source: DeepSeek-V2, arXiv:2405.04434, section 2.1; rotary pairs as in DeepSeek's published weights.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.attention import AttentionRows, attention
from kernels.checks import check_tensor
from kernels.linear import LinearWeight, linear
from kernels.norm import rms_norm


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentShape:
    """The sizes of the attention: rank is R, nope_dim is N, rope_dim is P, and value_dim is V.

    interleaved: see `rotate_reference`.
    scale: the factor of the scores.
    """

    rank: int
    nope_dim: int
    rope_dim: int
    value_dim: int
    interleaved: bool
    scale: float
    norm_eps: float


@dataclass(frozen=True, slots=True)
class Rotation:
    """Rotary tables [positions, P / 2] float32."""

    cosines: Tensor
    sines: Tensor


def rotate_reference(x: Tensor, cosine: Tensor, sine: Tensor, *, interleaved: bool) -> Tensor:
    """Rotates n heads of M rows: x [M, n, P] float32, cosine and sine [M, P / 2] -> [M, n, P].

    interleaved: whether the two numbers of a rotated pair are adjacent in x; otherwise they are P / 2 apart. In the
    result they are always P / 2 apart. This changes no score, because queries and keys get the same layout.
    """
    a, b = (x[..., 0::2], x[..., 1::2]) if interleaved else x.chunk(2, dim=-1)
    cosine, sine = cosine.unsqueeze(1), sine.unsqueeze(1)  # [M, 1, P / 2]
    return torch.cat((a * cosine - b * sine, b * cosine + a * sine), dim=-1)


def latent_write(
    latent: Tensor,
    norm: Tensor,
    shape: LatentShape,
    rotation: Rotation,
    positions: Tensor,
    slots: Tensor,
    cache: Tensor,
) -> None:
    """Writes the latents of M rows to their slots of the cache.

    Args:
        latent: [M, R + P] float32. norm: [R] float32.
        positions, slots: [M] int64. No two rows may have the same slot.
        cache: [slots, 1, R + P] in the model's dtype.

    Raises: ValueError: shapes or dtypes do not fit.
    """
    M, R = latent.shape[0], shape.rank
    check_tensor(latent, "latent", (M, R + shape.rope_dim), torch.float32)
    check_tensor(cache, "cache", (None, 1, R + shape.rope_dim), cache.dtype)
    rope = latent[:, R:].unsqueeze(1)  # [M, 1, P]
    cosine, sine = rotation.cosines[positions], rotation.sines[positions]
    cache[slots, 0, :R] = rms_norm(latent[:, :R].contiguous(), norm, shape.norm_eps, cache.dtype)
    cache[slots, :, R:] = rotate_reference(rope, cosine, sine, interleaved=shape.interleaved).to(cache.dtype)


def latent_attention(
    q: Tensor,
    key_up: tuple[LinearWeight, ...],
    value_up: tuple[LinearWeight, ...],
    shape: LatentShape,
    rotation: Rotation,
    positions: Tensor,
    cache: Tensor,
    rows: AttentionRows,
) -> Tensor:
    """Computes the attention of every head, in which a row attends to the cached latents that `rows` names for it.

    Args:
        q: [M, Hq, N + P] float32, not rotated yet.
        key_up: per head W^UK, [R, N]. value_up: per head W^UV, [V, R]. Both in the cache's dtype.
        cache: [slots, 1, R + P].

    Returns: [M, Hq, V] in the cache's dtype.
    Raises: ValueError: shapes or dtypes do not fit.
    """
    M, Hq, R, dtype = q.shape[0], q.shape[1], shape.rank, cache.dtype
    check_tensor(q, "q", (M, len(key_up), shape.nope_dim + shape.rope_dim), torch.float32)
    nope, rope = q.split((shape.nope_dim, shape.rope_dim), dim=-1)
    query = torch.empty(M, Hq, R + shape.rope_dim, device=q.device)
    for head, weight in enumerate(key_up):
        query[:, head, :R] = linear(nope[:, head].to(dtype).contiguous(), weight)
    cosine, sine = rotation.cosines[positions], rotation.sines[positions]
    query[..., R:] = rotate_reference(rope, cosine, sine, interleaved=shape.interleaved)
    query *= shape.scale * query.shape[-1] ** 0.5  # cancels the division by the root of the width in `attention`
    out = torch.empty(M, Hq, shape.value_dim, dtype=dtype, device=q.device)
    # The cache also serves as the values. The result's columns beyond R come from the rotary keys and are dropped.
    attended = attention(query, cache, cache, rows)[..., :R]  # [M, Hq, R]
    for head, weight in enumerate(value_up):
        out[:, head] = linear(attended[:, head].contiguous(), weight).to(dtype)
    return out
