"""Replaces our row-invariant operations by torch's, to measure how much time row invariance costs.

CUDA graphs that are captured within `with_library_operations` use torch's matrix products, which choose an algorithm by
the number of rows, and torch's fused attention over contiguous keys. Only the times of these graphs are meaningful.
Their results are wrong, because this attention ignores the slot tables and lets all nodes of a tree attend to each
other.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import torch
from torch import Tensor
from torch.nn import functional

from kernels.attention import AttentionRows
from kernels.cuda.parts import Parts
from kernels.lm_head import Head, SampledRows


def library_parts(x: Tensor, data: Tensor, scales: Tensor | None = None, bias: Tensor | None = None) -> Parts:
    """Replaces kernels.cuda.linear.linear_parts. Returns the product as a single partial sum, in float32."""
    sums = torch.mm(x, data.T, out_dtype=torch.float32) if x.is_cuda else functional.linear(x, data).float()
    return Parts(sums=sums.unsqueeze(0), scales=scales, bias=bias)


def library_attention(q: Tensor, k_cache: Tensor, v_cache: Tensor, length: int) -> Tensor:
    """Replaces kernels.attention.attention for rows of one sequence, over the cache's first `length` slots."""
    keys, values = (cache[:length].transpose(0, 1).unsqueeze(0) for cache in (k_cache, v_cache))
    queries = q.to(k_cache.dtype).transpose(0, 1).unsqueeze(0)
    has_shared_keys = q.shape[1] != k_cache.shape[1]
    out = functional.scaled_dot_product_attention(queries, keys, values, enable_gqa=has_shared_keys)
    return out[0].transpose(0, 1).contiguous()


@contextmanager
def with_library_operations(length: int) -> Iterator[Counter[str]]:
    """Replaces the operations within the `with` block. Yields a counter of the calls of each replacement.

    length: number of keys; there must be only one sequence.
    """
    num_calls: Counter[str] = Counter()

    def parts(x: Tensor, data: Tensor, scales: Tensor | None = None, bias: Tensor | None = None) -> Parts:
        num_calls["products"] += 1
        return library_parts(x, data, scales, bias)

    def attention(q: Tensor, k_cache: Tensor, v_cache: Tensor, rows: AttentionRows) -> Tensor:
        num_calls["attention"] += 1
        return library_attention(q, k_cache, v_cache, length)

    def choice(x: Tensor, head: Head, rows: SampledRows, base: Tensor | None = None) -> Tensor:
        num_calls["head"] += 1
        return functional.linear(x, head.data).argmax(-1)

    with (
        mock.patch("kernels.cuda.decoder.linear_parts", parts),
        mock.patch("kernels.cuda.decoder.attention", attention),
        mock.patch("engine.graph_decoding.sampling.sample_rows", choice),
    ):
        yield num_calls
