"""Paged tree attention whose rows (query tokens) depend only on their own keys.

A slot is an index into the KV cache. A row at position p attends to the p + 1 keys at the positions 0 .. p. The slots
of the first keys are in the sequence's slot table. The slots of the other keys are in the row's path, which lists the
row's ancestors in the draft tree and then the row itself. Keys are always processed in blocks of positions counted from
position 0, so plain decoding, chains and trees perform their additions in the same order.

M rows, S sequences of at most L positions, paths of at most P nodes, Hq query heads and Hkv KV heads of dimension D.

A sink is an additional score of a query head. It takes part in the softmax, but has no value.

Source: online softmax, Milakov and Gimelshein 2018, arXiv:1805.02867; sinks as in gpt-oss, arXiv:2508.10925.
"""

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from kernels.checks import check_tensor, dtype_code
from kernels.cpu.library import library

_BLOCK = 16  # keys per step of the online softmax, as in cpu/attention.c
_MAX_HEAD_DIM = 576  # largest D of cpu/attention.c, which stores a head on the stack
_MAX_CUDA_HEAD_DIM = 256  # largest D of cuda/attention.py, which stores 64 keys and values in shared memory


@dataclass(frozen=True, slots=True)
class AttentionRows:
    """The keys that each of M rows attends to. Rows of one sequence are adjacent.

    slot_tables: [S, L] int32. Slot of each committed position of each sequence.
    seqs: [M] int64. Index of the row's sequence in `slot_tables`.
    prefix_lens: [M] int64. Number of keys that the slot table locates.
    paths: [M, P] int32. Slots of the row's path, in position order; entries beyond `path_lens` are ignored.
    path_lens: [M] int64. Number of keys on the path.
    max_seqs: the rows belong to at most this number of sequences; None: S.
    max_keys: each row attends to at most this number of keys; None: L.

    On CUDA, these two bounds determine how many thread blocks are launched, because the host does not read the tensors.
    A CUDA graph keeps the bounds of its capture. A smaller bound makes a pass faster and changes no bits.

    tiles: on CUDA, the tensors that the first layer of a pass computes from `seqs` for all layers; the keys of the dict
        are numbers of rows per tile.
    """

    slot_tables: Tensor
    seqs: Tensor
    prefix_lens: Tensor
    paths: Tensor
    path_lens: Tensor
    max_seqs: int | None = None
    max_keys: int | None = None
    tiles: dict[int, Tensor] = field(default_factory=dict, init=False, repr=False, compare=False)

    def check(self) -> None:
        """Raises: ValueError: shapes or dtypes do not fit."""
        M = self.seqs.shape[0]
        check_tensor(self.slot_tables, "slot_tables", (None, None), torch.int32)
        check_tensor(self.seqs, "seqs", (M,), torch.int64)
        check_tensor(self.prefix_lens, "prefix_lens", (M,), torch.int64)
        check_tensor(self.paths, "paths", (M, None), torch.int32)
        check_tensor(self.path_lens, "path_lens", (M,), torch.int64)

    def select(self, part: slice) -> "AttentionRows":
        """Returns this description for a part of the M rows."""
        return replace(
            self,
            seqs=self.seqs[part],
            prefix_lens=self.prefix_lens[part],
            paths=self.paths[part],
            path_lens=self.path_lens[part],
        )

    def slots(self, row: int) -> Tensor:
        """Returns [p + 1] int64: the slots of the row's keys, in position order."""
        prefix = self.slot_tables[self.seqs[row], : self.prefix_lens[row]]
        return torch.cat((prefix, self.paths[row, : self.path_lens[row]])).long()


def last_keys(rows: AttentionRows, window: int) -> AttentionRows:
    """Restricts each row to its last `window` keys, for sliding windows; the row's own key is the last.

    A row's blocks are then counted from its first remaining key, which depends only on the row's position. So the row
    has the same bits in any batch.
    """
    lengths = rows.prefix_lens + rows.path_lens
    if not lengths.is_cuda and bool((lengths <= window).all()):  # on CUDA this would wait for the device
        return rows
    M, L, device = rows.seqs.shape[0], rows.slot_tables.shape[1], lengths.device
    num_skipped = (lengths - window).clamp(min=0)
    from_prefix = torch.minimum(num_skipped, rows.prefix_lens)
    from_path = num_skipped - from_prefix
    columns = from_prefix.unsqueeze(1) + torch.arange(min(window, L), device=device)  # [M, width]
    nodes = from_path.unsqueeze(1) + torch.arange(rows.paths.shape[1], device=device)  # [M, P]
    return AttentionRows(
        slot_tables=rows.slot_tables[rows.seqs.unsqueeze(1), columns.clamp(max=L - 1)],
        seqs=torch.arange(M, device=device),
        prefix_lens=rows.prefix_lens - from_prefix,
        paths=rows.paths.gather(1, nodes.clamp(max=rows.paths.shape[1] - 1)),
        path_lens=rows.path_lens - from_path,
        max_keys=min(window, L if rows.max_keys is None else rows.max_keys),
    )


def has_compiled_attention(num_heads: int, num_kv_heads: int, head_dim: int) -> bool:
    """Returns whether cpu/attention.c supports this shape."""
    return head_dim % 16 == 0 and head_dim <= _MAX_HEAD_DIM


def _attend(query: Tensor, keys: Tensor, values: Tensor, sinks: Tensor | None) -> Tensor:
    """Computes one row's attention: query [Hq, D], keys and values [p + 1, Hkv, D], all float32 -> [Hq, D].

    The last block is padded to 16 keys, because torch's order of additions depends on the shape.
    """
    num_kv_heads, D = keys.shape[1:]
    query = query.view(num_kv_heads, -1, D) * D**-0.5  # [Hkv, G, D] with G query heads per KV head
    top = query.new_full(query.shape[:2], float("-inf"))  # [Hkv, G]: the largest score so far
    total = torch.zeros_like(top)  # the sum of exp(score - top)
    out = torch.zeros_like(query)  # the sum of exp(score - top) * value
    for start in range(0, keys.shape[0], _BLOCK):
        count = min(_BLOCK, keys.shape[0] - start)
        k, v = query.new_zeros(_BLOCK, num_kv_heads, D), query.new_zeros(_BLOCK, num_kv_heads, D)
        k[:count], v[:count] = keys[start : start + count], values[start : start + count]
        scores = torch.einsum("hgd,jhd->hgj", query, k)
        scores[..., count:] = float("-inf")
        new_top = torch.maximum(top, scores.amax(-1))
        weights = torch.exp(scores - new_top.unsqueeze(-1))  # [Hkv, G, 16]
        factor = torch.exp(top - new_top)
        total = total * factor + weights.sum(-1)
        out = out * factor.unsqueeze(-1) + torch.einsum("hgj,jhd->hgd", weights, v)
        top = new_top
    if sinks is not None:
        total = total + torch.exp(sinks.view(top.shape) - top)
    return (out / total.unsqueeze(-1)).flatten(0, 1)


def attention_reference(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, rows: AttentionRows, sinks: Tensor | None = None
) -> Tensor:
    """Reference of `attention`. It computes each row separately."""
    out = torch.empty(q.shape, dtype=k_cache.dtype, device=q.device)
    for row in range(q.shape[0]):
        slots = rows.slots(row)
        out[row] = _attend(q[row], k_cache[slots].float(), v_cache[slots].float(), sinks).to(out.dtype)
    return out


def attention(q: Tensor, k_cache: Tensor, v_cache: Tensor, rows: AttentionRows, sinks: Tensor | None = None) -> Tensor:
    """Computes softmax(q k / sqrt(D)) v for every row.

    Args:
        q: [M, Hq, D] float32; heads are contiguous, rows may be strided.
        k_cache, v_cache: [slots, Hkv, D] float32 or bfloat16; Hkv divides Hq.
        sinks: [Hq] float32. On CUDA, the reference computes attention with sinks.

    Returns: [M, Hq, D] in the caches' dtype.
    Raises: ValueError: shapes or dtypes do not fit.
    """
    rows.check()
    M, Hq, D = q.shape
    num_slots, Hkv, _ = k_cache.shape
    check_tensor(k_cache, "k_cache", (num_slots, Hkv, D), k_cache.dtype)
    check_tensor(v_cache, "v_cache", (num_slots, Hkv, D), k_cache.dtype)
    if Hq % Hkv or q.dtype != torch.float32 or q.stride()[1:] != (D, 1) or rows.seqs.shape[0] != M:
        raise ValueError(
            f"q must be float32 [{rows.seqs.shape[0]}, n * {Hkv}, {D}] with contiguous heads, "
            f"got {q.dtype} {list(q.shape)} strides {q.stride()}"
        )
    if sinks is not None:
        check_tensor(sinks, "sinks", (Hq,), torch.float32)
    kernels = library() if q.device.type == "cpu" else None
    if kernels is None or not has_compiled_attention(Hq, Hkv, D):
        if q.is_cuda and D <= _MAX_CUDA_HEAD_DIM and sinks is None:
            from kernels.cuda.attention import attention as launch  # imported here, because triton requires CUDA

            return launch(q, k_cache, v_cache, rows)
        return attention_reference(q, k_cache, v_cache, rows, sinks)
    out = torch.empty(M, Hq, D, dtype=k_cache.dtype)
    failed = kernels.slipstream_attention(
        q.data_ptr(),
        q.stride(0),
        k_cache.data_ptr(),
        v_cache.data_ptr(),
        rows.slot_tables.data_ptr(),
        rows.slot_tables.shape[1],
        rows.seqs.data_ptr(),
        rows.prefix_lens.data_ptr(),
        rows.paths.data_ptr(),
        rows.paths.shape[1],
        rows.path_lens.data_ptr(),
        out.data_ptr(),
        M,
        Hq,
        Hkv,
        D,
        dtype_code(k_cache, "k_cache"),
        None if sinks is None else sinks.data_ptr(),
    )
    if failed:
        raise MemoryError(f"no memory for the attention of {M} rows")
    return out
