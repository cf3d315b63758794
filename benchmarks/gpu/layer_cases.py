"""Benchmark cases of the operations of a decoder layer: products, attention, norm, rotary embedding, SwiGLU.

Shape letters: M rows; K inputs and N outputs of a product; H hidden size, Hq query heads, Hkv key-value heads, D head
size, L keys.
"""

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.gpu.case import Case, Outputs, RowInvariance, relative_error
from benchmarks.gpu.inputs import Inputs, Sizes
from benchmarks.gpu.peak_rates import Work, product_flops
from kernels.attention import AttentionRows
from kernels.cuda.attention import attention
from kernels.cuda.linear import linear
from kernels.cuda.norm import add_rms_norm
from kernels.cuda.parts import Parts
from kernels.cuda.rope import rope_write
from kernels.cuda.swiglu import swiglu, swiglu_linear
from kernels.norm import rms_norm_reference
from kernels.rope import HeadNorms, rotate

# Tolerances of ||error|| / ||exact||.
_FLOAT32_TOLERANCE = 1e-4  # for float32 sums, because a matrix unit may truncate their last bits
_BFLOAT16_TOLERANCE = 6e-3  # for results in bfloat16, whose relative rounding error is at most 2**-8 = 4e-3
_ATTENTION_TOLERANCE = 1e-2  # larger, because the attention weights are also rounded, before the product with V
_EPS = 1e-5
ONE_BYTE = (torch.int8, torch.float8_e4m3fn)


def tolerance(dtype: torch.dtype, in_bfloat16: float = _BFLOAT16_TOLERANCE) -> float:
    return _FLOAT32_TOLERANCE if dtype == torch.float32 else in_bfloat16


def weights_of(sizes: Sizes) -> dict[str, tuple[int, int]]:
    """Returns the shapes [N, K] of a layer's weights."""
    heads = sizes.num_heads * sizes.head_dim
    return {
        "qkv": (heads + 2 * sizes.num_kv_heads * sizes.head_dim, sizes.hidden_size),
        "output": (sizes.hidden_size, heads),
        "gate_up": (2 * sizes.intermediate_size, sizes.hidden_size),
        "down": (sizes.hidden_size, sizes.intermediate_size),
    }


def product(inputs: Inputs, name: str, N: int, K: int, M: int, one_byte: torch.dtype | None = None) -> Case:
    """The product of x [M, K] with a weight [N, K]. `one_byte`: dtype of a quantized weight."""
    x, weight = inputs.normal(M, K), inputs.normal(N, K)
    scales = None
    rivals: dict[str, Callable[[], object]] = {"library": lambda: functional.linear(x, weight)}
    if one_byte is not None:
        # There is no rival, because torch has no product with a weight in this format.
        data, scales, rivals = (weight * 30).clamp(-127, 127).to(one_byte), inputs.normal(N).abs().float(), {}
    else:
        data = weight

    def exact() -> Outputs:
        out = x.double() @ data.double().T
        return [out if scales is None else out * scales.double()]

    kind = str(data.dtype).removeprefix("torch.")
    return Case(
        operation="linear",
        shape=f"{name} {N}x{K} {kind}, {M} rows",
        run=lambda: [linear(x, data, scales, None)],
        error=relative_error(exact),
        tolerance=_FLOAT32_TOLERANCE,
        work=Work(num_bytes=data.nbytes + x.nbytes + M * N * 4, flops=product_flops(M, N, K)),
        rivals=rivals,
    )


def tree_rows(num_rows: int, context: int, table: Tensor, seq: int = 0) -> AttentionRows:
    """Returns rows for the last committed token and a binary tree of `num_rows` - 1 nodes after it.

    The nodes' slots are those after the context in the slot table.
    """
    paths: list[list[int]] = [[]]
    slots = table[seq, context : context + num_rows - 1].tolist()
    for node, slot in enumerate(slots):  # node i has row i + 1, and its parent has row (i + 1) // 2
        paths.append([*paths[(node + 1) // 2], slot])
    return rows_of(table, [seq] * num_rows, [context] * num_rows, paths)


def rows_of(table: Tensor, seqs: list[int], prefix_lens: list[int], paths: list[list[int]]) -> AttentionRows:
    """Makes attention rows. The lists have an entry for each row: its sequence, prefix length, and path (slots)."""
    width = max(1, *map(len, paths))
    padded = [path + [0] * (width - len(path)) for path in paths]
    integers = torch.tensor((seqs, prefix_lens, list(map(len, paths))), dtype=torch.int64).to(table.device)
    slots = torch.tensor(padded, dtype=torch.int32).to(table.device)
    return AttentionRows(table, integers[0], integers[1], slots, integers[2])


def exact_attention(q: Tensor, k_cache: Tensor, v_cache: Tensor, rows: AttentionRows) -> Tensor:
    """Computes attention [M, Hq, D] in float64, row by row."""
    out = []
    for row in range(q.shape[0]):
        slots = rows.slots(row)
        k, v = k_cache[slots].double(), v_cache[slots].double()  # [L, Hkv, D]
        grouped = q[row].double().view(k.shape[1], -1, k.shape[2])
        scores = torch.einsum("hgd,lhd->hgl", grouped, k) * k.shape[2] ** -0.5
        out.append(torch.einsum("hgl,lhd->hgd", scores.softmax(-1), v).flatten(0, 1))
    return torch.stack(out)


def tree_attention(inputs: Inputs, model: str, sizes: Sizes, context: int, num_rows: int) -> Case:
    Hq, Hkv, D = sizes.num_heads, sizes.num_kv_heads, sizes.head_dim
    length = context + num_rows - 1
    k, v = inputs.normal(length, Hkv, D), inputs.normal(length, Hkv, D)
    q = inputs.normal(num_rows, Hq, D).float()
    rows = tree_rows(num_rows, context, inputs.permutation(length).int().unsqueeze(0))
    keys, values = (cache.transpose(0, 1).unsqueeze(0).contiguous() for cache in (k, v))
    queries = q.to(k.dtype).transpose(0, 1).unsqueeze(0).contiguous()
    # torch's attention gets a causal mask instead of the tree's: each row attends to the context and all earlier rows.
    causal = torch.ones(num_rows, length, dtype=torch.bool, device=k.device).tril(length - num_rows)
    mask = None if num_rows == 1 else causal

    return Case(
        operation="attention",
        shape=f"{model} heads, {context} keys, {num_rows} rows",
        run=lambda: [attention(q, k, v, rows)],
        error=relative_error(lambda: [exact_attention(q, k, v, rows)]),
        tolerance=tolerance(k.dtype, _ATTENTION_TOLERANCE),
        # q is float32 and the output has half as many bytes. Per row and head there are two products, with the keys
        # and with the values, which have 2 * length * D operations each.
        work=Work(num_bytes=k.nbytes + v.nbytes + q.nbytes * 3 // 2, flops=4 * num_rows * Hq * D * length),
        rivals={
            "library": lambda: functional.scaled_dot_product_attention(
                queries, keys, values, attn_mask=mask, enable_gqa=Hq != Hkv
            )
        },
    )


def norm(inputs: Inputs, model: str, sizes: Sizes, M: int) -> Case:
    """Adding a product to the residual stream, and the RMS norm of the sum."""
    H, splits = sizes.hidden_size, 4  # the product is given as 4 partial sums, which the kernel adds
    sums, residual = inputs.normal(splits, M, H).float(), inputs.normal(M, H).float()
    weight, before = inputs.normal(H).float(), residual.clone()

    def exact() -> Outputs:
        added = before.double() + sums.double().sum(0)
        return [rms_norm_reference(added, weight.double(), _EPS, torch.float64), added]

    return Case(
        operation="add_rms_norm",
        shape=f"{model}, {M} rows",
        run=lambda: [add_rms_norm(Parts(sums=sums), residual, weight, _EPS, inputs.dtype), residual],
        error=relative_error(exact),
        tolerance=tolerance(inputs.dtype),
        work=Work(num_bytes=sums.nbytes + 2 * residual.nbytes + M * H * inputs.dtype.itemsize),
    )


def rope(inputs: Inputs, model: str, sizes: Sizes, M: int) -> Case:
    """Norms and rotary embedding of queries and keys, and writing keys and values to their cache slots."""
    Hq, Hkv, D, splits = sizes.num_heads, sizes.num_kv_heads, sizes.head_dim, 2
    num_slots = 2 * M + 1
    sums = inputs.normal(splits, M, (Hq + 2 * Hkv) * D).float()
    cosines, sines = inputs.normal(num_slots, D // 2).float(), inputs.normal(num_slots, D // 2).float()
    norms = HeadNorms(inputs.normal(D).float(), inputs.normal(D).float(), _EPS)
    positions, slots = inputs.permutation(num_slots)[:M].clone(), inputs.permutation(num_slots)[:M].clone()

    def run() -> Outputs:
        queries = torch.empty(M, Hq * D, dtype=torch.float32, device=sums.device)
        k, v = (torch.empty(num_slots, Hkv, D, dtype=inputs.dtype, device=sums.device) for _ in range(2))
        rope_write(Parts(sums=sums), cosines, sines, positions, slots, k, v, norms, queries)
        return [queries.view(M, Hq, D), k[slots], v[slots]]

    def exact() -> Outputs:
        q, k, v = sums.double().sum(0).view(M, -1, D).split((Hq, Hkv, Hkv), dim=1)
        q = rms_norm_reference(q, norms.query.double(), _EPS, torch.float64)
        k = rms_norm_reference(k, norms.key.double(), _EPS, torch.float64)
        cosine, sine = cosines[positions].double(), sines[positions].double()
        return [rotate(q, cosine, sine), rotate(k, cosine, sine), v]

    return Case(
        operation="rope_write",
        shape=f"{model}, {M} rows",
        run=run,
        error=relative_error(exact),
        tolerance=tolerance(inputs.dtype),
        work=Work(num_bytes=sums.nbytes + M * Hq * D * 4 + 2 * M * Hkv * D * inputs.dtype.itemsize),
    )


def gated(inputs: Inputs, model: str, sizes: Sizes, M: int) -> Case:
    sums = inputs.normal(1, M, 2 * sizes.intermediate_size).float()

    def exact() -> Outputs:
        gate, up = sums.double().sum(0).chunk(2, dim=-1)
        return [functional.silu(gate) * up]

    return Case(
        operation="swiglu",
        shape=f"{model}, {M} rows",
        run=lambda: [swiglu(Parts(sums=sums), inputs.dtype)],
        error=relative_error(exact),
        tolerance=tolerance(inputs.dtype),
        work=Work(num_bytes=sums.nbytes + M * sizes.intermediate_size * inputs.dtype.itemsize),
    )


def gated_product(inputs: Inputs, model: str, sizes: Sizes, M: int) -> Case:
    """The product with gate_up, followed by SwiGLU; both are one kernel if the product has one split."""
    N, K = weights_of(sizes)["gate_up"]
    x, weight = inputs.normal(M, K), inputs.normal(N, K) / K**0.5

    def exact() -> Outputs:
        gate, up = (x.double() @ weight.double().T).chunk(2, dim=-1)
        return [functional.silu(gate) * up]

    def library() -> object:
        gate, up = functional.linear(x, weight).chunk(2, dim=-1)
        return functional.silu(gate) * up

    return Case(
        operation="swiglu_linear",
        shape=f"{model}, {M} rows",
        run=lambda: [swiglu_linear(x, weight, None, None)],
        error=relative_error(exact),
        tolerance=tolerance(inputs.dtype),
        work=Work(num_bytes=weight.nbytes + x.nbytes + M * N // 2 * x.itemsize, flops=product_flops(M, N, K)),
        rivals={"library": library},
    )


def row_invariance_claims(inputs: Inputs, sizes: Sizes, num_rows: int, context: int) -> Iterator[RowInvariance]:
    """Yields the claims for products in each weight format, for SwiGLU of a product, and for attention over sequences
    of different lengths with a tree each.
    """
    N, K = weights_of(sizes)["output"]
    x = inputs.normal(num_rows, K)
    for kind in (None, *ONE_BYTE):
        weight = inputs.normal(N, K)
        data = weight if kind is None else (weight * 30).clamp(-127, 127).to(kind)
        yield RowInvariance(
            operation=f"linear {str(data.dtype).removeprefix('torch.')}",
            num_rows=num_rows,
            run=partial(_product_of, x, data),
        )
    N, K = weights_of(sizes)["gate_up"]
    yield RowInvariance(
        operation="swiglu_linear",
        num_rows=num_rows,
        run=partial(_gated_product_of, inputs.normal(num_rows, K), inputs.normal(N, K) / K**0.5),
    )
    yield _batch_of_trees(inputs, sizes, num_rows, context)


def _product_of(x: Tensor, data: Tensor, window: slice) -> Outputs:
    return [linear(x[window].contiguous(), data, None, None)]


def _gated_product_of(x: Tensor, data: Tensor, window: slice) -> Outputs:
    return [swiglu_linear(x[window].contiguous(), data, None, None)]


def _batch_of_trees(inputs: Inputs, sizes: Sizes, num_rows: int, context: int) -> RowInvariance:
    Hq, Hkv, D = sizes.num_heads, sizes.num_kv_heads, sizes.head_dim
    num_seqs = min(8, num_rows)
    k, v = (
        inputs.normal(num_seqs * (context + num_rows), Hkv, D),
        inputs.normal(num_seqs * (context + num_rows), Hkv, D),
    )
    table = inputs.permutation(k.shape[0]).int().view(num_seqs, -1).contiguous()
    q = inputs.normal(num_rows, Hq, D).float()
    rows_per_seq = -(-num_rows // num_seqs)  # rounded up
    seqs: list[int] = []
    lengths: list[int] = []
    paths: list[list[int]] = []
    for seq in range(num_seqs):
        count = min(rows_per_seq, num_rows - len(seqs))
        if count <= 0:
            break
        length = max(1, context * (seq + 1) // num_seqs)
        tree = tree_rows(count, length, table, seq)
        seqs += [seq] * count
        lengths += [length] * count
        paths += [tree.paths[row, : tree.path_lens[row]].tolist() for row in range(count)]
    rows = rows_of(table, seqs, lengths, paths)
    return RowInvariance(
        operation="attention, trees of 8 sequences",
        num_rows=num_rows,
        run=lambda window: [attention(q[window].contiguous(), k, v, rows.select(window))],
    )


def tree_against_plain(inputs: Inputs, sizes: Sizes, num_rows: int, context: int) -> list[str]:
    """Returns the rows of a draft tree whose attention differs in any bit from plain decoding of their path."""
    Hq, Hkv, D = sizes.num_heads, sizes.num_kv_heads, sizes.head_dim
    k, v = inputs.normal(context + num_rows, Hkv, D), inputs.normal(context + num_rows, Hkv, D)
    table = inputs.permutation(context + num_rows).int().unsqueeze(0).contiguous()
    q = inputs.normal(num_rows, Hq, D).float()
    tree = tree_rows(num_rows, context, table)
    of_tree = attention(q, k, v, tree)
    different = []
    for row in range(num_rows):
        slots = tree.slots(row).int().unsqueeze(0).contiguous()  # a slot table for plain decoding of the row's path
        plain = rows_of(slots, [0], [slots.shape[1]], [[]])
        if not torch.equal(attention(q[row : row + 1], k, v, plain)[0], of_tree[row]):
            different.append(f"row {row}")
    return different
