"""Computes all Medusa heads with one matrix product, whose weight consists of the weights of all heads.

    out[m, h] = x[m, :H] + silu(W_h x[m] + b_h)        for row m and head h

The first H of the K columns of x are the hidden state. Some drafters append the embedding of the last token.

Source: Cai et al. 2024, arXiv:2401.10774; one product for all heads: LoRAX.
"""

from torch import Tensor
from torch.nn import functional

from kernels.checks import check_tensor
from kernels.linear import LinearWeight, linear


def medusa_heads_reference(x: Tensor, product: Tensor, num_heads: int) -> Tensor:
    """Reference of the step after the product: x [M, K], product [M, heads * H] float32 -> [M, heads, H], dtype of
    x."""
    inner = product.view(x.shape[0], num_heads, -1)
    return (x[:, None, : inner.shape[-1]].float() + functional.silu(inner)).to(x.dtype)


def medusa_heads(x: Tensor, weight: LinearWeight, num_heads: int) -> Tensor:
    """Computes all heads: x [M, K], weight [heads * H, K] of the same dtype, H <= K -> [M, heads, H] in that dtype.

    Raises: ValueError: shapes or dtypes do not fit.
    """
    check_tensor(x, "x", (None, weight.in_features), weight.dtype)
    H, rest = divmod(weight.out_features, num_heads)
    if rest or weight.in_features < H:
        raise ValueError(f"weight must be [{num_heads} H, K >= H], got {[weight.out_features, weight.in_features]}")
    if x.is_cuda:
        from kernels.cuda.linear import linear_parts  # imported here, because triton requires CUDA
        from kernels.cuda.medusa import medusa_heads as launch

        return launch(x, linear_parts(x, weight.data, weight.scales, weight.bias), num_heads)
    return medusa_heads_reference(x, linear(x, weight), num_heads)
