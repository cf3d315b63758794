"""Paged tree attention on CUDA. A block of keys is read once for many rows of its sequence.

A row at position p has a fixed order of additions, which depends only on p. Its keys are divided into two parts:

    prefix   Positions 0 .. t - 1, where t = max(0, (p + 1 - 64) // 64 * 64). All their slots are in the slot table,
             because a path has at most 64 nodes. The prefix is cut into splits at fixed positions, and a split into
             blocks of 64 keys. A block is read once for up to 64 pairs of a row and a head, in tiles of 16 pairs.
    tail     Positions t .. p, which are at most two blocks. Their slots are in the slot table and in the row's path.
             Each row reads its tail separately.

The result of a row is the combination of its splits, from the first to the last, and then its tail.

Source: Flash-Decoding, Dao et al. 2023, for splits of the keys.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.attention import AttentionRows
from kernels.cuda.row_tiles import row_tiles

MAX_PATH = 64
_BLOCK = tl.constexpr(64)
_TILE = tl.constexpr(16)
# The first 8 splits of a prefix have 256 positions each, the others 1024. A prefix of 32K positions has 38 splits.
_SHORT, _NUM_SHORT, _LONG = tl.constexpr(256), tl.constexpr(8), tl.constexpr(1024)
_NARROW = 256  # maximum number of bytes of a narrow head (128 numbers in bfloat16)
_MAX_TILES = 4  # tiles per program for narrow heads; more tiles would not fit into the registers
# Numbers of pipeline stages for narrow and for wide heads. With these, keys and values are loaded two blocks ahead for
# narrow heads and one block ahead for wide heads. Slots are loaded one step before their keys.
_DEPTH, _WIDE_DEPTH = 5, 3
_MAX_ROWS = 256  # rows per launch; limits the memory for the results of splits
_LOG2_E = 1.4426950408889634


@triton.jit
def _tail_start(length):
    """Computes t, the first position of the tail of a row with `length` = p + 1 keys."""
    return tl.maximum(length - _BLOCK, 0) // _BLOCK * _BLOCK


@triton.jit
def _split_start(split):
    return tl.minimum(split, _NUM_SHORT) * _SHORT + tl.maximum(split - _NUM_SHORT, 0) * _LONG


@triton.jit
def _num_splits(end):
    """Computes the number of splits of a prefix that ends at `end`."""
    in_long_splits = tl.maximum(end - _NUM_SHORT * _SHORT, 0)
    return tl.cdiv(tl.minimum(end, _NUM_SHORT * _SHORT), _SHORT) + tl.cdiv(in_long_splits, _LONG)


@triton.jit
def _attend(q, k, v, attends, scale, top, total, out):
    """Adds a block of keys to the online softmax of a tile and returns the new state.

    q [16, D], k and v [64, D]. `attends` tells which pairs attend to which keys and can be broadcast to [16, 64].
    The state is the maximum score `top` [16], the sum of exponentials `total` [16], and the weighted sum of values
    `out` [16, D].
    """
    scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
    scores = tl.where(attends, scores, float("-inf"))
    new_top = tl.maximum(top, tl.max(scores, 1))
    shift = tl.where(new_top == float("-inf"), 0.0, new_top)  # -inf: the row attends to none of the keys so far
    weights = tl.exp2(scores - shift[:, None])
    factor = tl.exp2(top - shift)
    out = tl.dot(weights.to(v.dtype), v, out * factor[:, None], input_precision="ieee")
    return new_top, total * factor + tl.sum(weights, 1), out


@triton.jit(do_not_specialize=["M"])
def _prefix_kernel(  # long: a kernel cannot be divided, because each tile has five variables in registers
    q_ptr,
    k_ptr,
    v_ptr,
    table_ptr,
    seqs_ptr,
    prefix_lens_ptr,
    path_lens_ptr,
    tops_ptr,
    totals_ptr,
    outs_ptr,
    M,
    q_stride,
    table_stride,
    scale,
    tiles_ptr,
    Hq: tl.constexpr,
    Hkv: tl.constexpr,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
    HEADS: tl.constexpr,  # heads of a row in a tile, a power of two
    TILES: tl.constexpr,
):
    G: tl.constexpr = Hq // Hkv
    CHUNKS: tl.constexpr = (G + HEADS - 1) // HEADS
    first = tl.load(tiles_ptr + 2 * tl.program_id(0)).to(tl.int64)
    count = tl.load(tiles_ptr + 2 * tl.program_id(0) + 1)
    if count == 0:
        return
    kv_head = tl.program_id(1) // CHUNKS
    split = tl.program_id(2)
    pair, d = tl.arange(0, _TILE), tl.arange(0, BLOCK_D).to(tl.int64)
    in_group = tl.program_id(1) % CHUNKS * HEADS + pair % HEADS
    head = kv_head * G + in_group

    start = _split_start(split)
    last_end = start * 0
    ends = ()
    queries = ()
    for tile in tl.static_range(TILES):
        row_index = tile * (_TILE // HEADS) + pair // HEADS  # index among the rows of this program
        row = first + row_index
        real = (row_index < count) & (in_group < G)
        length = tl.load(prefix_lens_ptr + row, mask=real, other=0) + tl.load(path_lens_ptr + row, mask=real, other=0)
        end = _tail_start(length)
        q = tl.load(
            q_ptr + row[:, None] * q_stride + head[:, None] * D + d[None, :],
            mask=real[:, None] & (d < D)[None, :],
            other=0.0,
        )
        ends = ends + (end,)  # type: ignore[assignment]  # noqa: RUF005  triton knows no unpacking
        queries = queries + (q.to(k_ptr.dtype.element_ty),)  # type: ignore[assignment]  # noqa: RUF005
        last_end = tl.maximum(last_end, tl.max(end, 0).to(tl.int32))

    table = table_ptr + tl.load(seqs_ptr + first) * table_stride
    tops = (tl.full((_TILE,), float("-inf"), tl.float32),) * TILES
    totals = (tl.zeros((_TILE,), tl.float32),) * TILES
    outs = (tl.zeros((_TILE, BLOCK_D), tl.float32),) * TILES
    for position in range(start, tl.minimum(_split_start(split + 1), last_end), _BLOCK):
        slots = tl.load(table + position + tl.arange(0, _BLOCK)).to(tl.int64)
        offsets = (slots[:, None] * Hkv + kv_head) * D + d[None, :]
        k = tl.load(k_ptr + offsets, mask=(d < D)[None, :], other=0.0)
        v = tl.load(v_ptr + offsets, mask=(d < D)[None, :], other=0.0)
        new_tops = ()
        new_totals = ()
        new_outs = ()
        for tile in tl.static_range(TILES):
            attends = tl.expand_dims(position < ends[tile], 1)
            top, total, out = _attend(queries[tile], k, v, attends, scale, tops[tile], totals[tile], outs[tile])
            new_tops = new_tops + (top,)  # type: ignore[assignment]  # noqa: RUF005
            new_totals = new_totals + (total,)  # type: ignore[assignment]  # noqa: RUF005
            new_outs = new_outs + (out,)  # type: ignore[assignment]  # noqa: RUF005
        tops = new_tops
        totals = new_totals
        outs = new_outs

    for tile in tl.static_range(TILES):
        row = first + tile * (_TILE // HEADS) + pair // HEADS
        used = start < ends[tile]
        index = (split.to(tl.int64) * M + row) * Hq + head  # in [splits, M, Hq]
        tl.store(tops_ptr + index, tops[tile], mask=used)
        tl.store(totals_ptr + index, totals[tile], mask=used)
        tl.store(outs_ptr + index[:, None] * D + d[None, :], outs[tile], mask=used[:, None] & (d < D)[None, :])


@triton.jit(do_not_specialize=["M"])
def _tail_kernel(  # long: one launch combines the splits and adds the tail in the same registers
    q_ptr,
    k_ptr,
    v_ptr,
    table_ptr,
    seqs_ptr,
    prefix_lens_ptr,
    path_lens_ptr,
    tops_ptr,
    totals_ptr,
    outs_ptr,
    M,
    q_stride,
    table_stride,
    scale,
    paths_ptr,
    path_stride,
    out_ptr,
    Hq: tl.constexpr,
    Hkv: tl.constexpr,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
    HEADS: tl.constexpr,
):
    G: tl.constexpr = Hq // Hkv
    CHUNKS: tl.constexpr = (G + HEADS - 1) // HEADS
    row = tl.program_id(0).to(tl.int64)
    kv_head = tl.program_id(1) // CHUNKS
    pair, d = tl.arange(0, _TILE), tl.arange(0, BLOCK_D).to(tl.int64)
    in_group = tl.program_id(1) % CHUNKS * HEADS + pair
    head = kv_head * G + in_group
    real = (pair < HEADS) & (in_group < G)
    wanted = real[:, None] & (d < D)[None, :]
    prefix_len = tl.load(prefix_lens_ptr + row).to(tl.int32)
    length = prefix_len + tl.load(path_lens_ptr + row).to(tl.int32)
    end = _tail_start(length)

    top = tl.full((_TILE,), float("-inf"), tl.float32)
    total = tl.zeros((_TILE,), tl.float32)
    out = tl.zeros((_TILE, BLOCK_D), tl.float32)
    for split in tl.range(0, _num_splits(end), loop_unroll_factor=4):
        index = (tl.full((), split, tl.int64) * M + row) * Hq + head  # in [splits, M, Hq]
        split_top = tl.load(tops_ptr + index, mask=real, other=0.0)
        new_top = tl.maximum(top, split_top)
        factor, split_factor = tl.exp2(top - new_top), tl.exp2(split_top - new_top)
        total = total * factor + tl.load(totals_ptr + index, mask=real, other=1.0) * split_factor
        split_out = tl.load(outs_ptr + index[:, None] * D + d[None, :], mask=wanted, other=0.0)
        out = out * factor[:, None] + split_out * split_factor[:, None]
        top = new_top

    table = table_ptr + tl.load(seqs_ptr + row) * table_stride
    q = tl.load(q_ptr + row * q_stride + head[:, None] * D + d[None, :], mask=wanted, other=0.0)
    q = q.to(k_ptr.dtype.element_ty)
    for start in range(end, length, _BLOCK):
        position = start + tl.arange(0, _BLOCK)
        on_path = tl.load(
            paths_ptr + row * path_stride + position - prefix_len,
            mask=(position >= prefix_len) & (position < length),
            other=0,
        )
        in_prefix = position < prefix_len
        slots = tl.where(in_prefix, tl.load(table + position, mask=in_prefix, other=0), on_path).to(tl.int64)
        offsets = (slots[:, None] * Hkv + kv_head) * D + d[None, :]
        attends = position < length
        k = tl.load(k_ptr + offsets, mask=attends[:, None] & (d < D)[None, :], other=0.0)
        v = tl.load(v_ptr + offsets, mask=attends[:, None] & (d < D)[None, :], other=0.0)
        top, total, out = _attend(q, k, v, attends[None, :], scale, top, total, out)
    out = (out / total[:, None]).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + (row * Hq + head)[:, None] * D + d[None, :], out, mask=wanted)


def num_splits(max_seq_len: int) -> int:
    """Returns the number of splits of the prefix of a row with `max_seq_len` keys."""
    end = max(max_seq_len - _BLOCK.value, 0) // _BLOCK.value * _BLOCK.value
    in_short_splits = _NUM_SHORT.value * _SHORT.value
    return int(-(-min(end, in_short_splits) // _SHORT.value) + -(-max(end - in_short_splits, 0) // _LONG.value))


def _num_tiles(M: int, heads: int, row_bytes: int) -> int:
    """Returns the number of tiles per program, which does not affect the bits of the rows."""
    needed = triton.next_power_of_2(-(-M // (_TILE.value // heads)))
    return int(min(needed, _MAX_TILES)) if row_bytes <= _NARROW else 1


def _heads_in_tile(group: int) -> int:
    return int(min(_TILE.value, triton.next_power_of_2(group)))


def _tiles(rows: AttentionRows, rows_per_tile: int) -> Tensor:
    if rows_per_tile not in rows.tiles:
        max_seqs = rows.slot_tables.shape[0] if rows.max_seqs is None else rows.max_seqs
        rows.tiles[rows_per_tile] = row_tiles(rows.seqs, rows_per_tile, max_seqs)
    return rows.tiles[rows_per_tile]


def attention(q: Tensor, k_cache: Tensor, v_cache: Tensor, rows: AttentionRows) -> Tensor:
    """Implements `kernels.attention.attention` on CUDA; that function has checked the arguments.

    Raises: ValueError: paths longer than 64.
    """
    if rows.paths.shape[1] > MAX_PATH:
        raise ValueError(f"paths must have at most {MAX_PATH} nodes, got {rows.paths.shape[1]}")
    out = torch.empty(q.shape, dtype=k_cache.dtype, device=q.device)
    if q.shape[0] <= _MAX_ROWS:
        _attention(q, k_cache, v_cache, rows, out)
        return out
    for first in range(0, q.shape[0], _MAX_ROWS):
        part = slice(first, first + _MAX_ROWS)
        _attention(q[part], k_cache, v_cache, rows.select(part), out[part])
    return out


def _attention(q: Tensor, k_cache: Tensor, v_cache: Tensor, rows: AttentionRows, out: Tensor) -> None:
    M, Hq, D = q.shape
    Hkv = k_cache.shape[1]
    heads = _heads_in_tile(Hq // Hkv)
    sizes = {"Hq": Hq, "Hkv": Hkv, "D": D, "BLOCK_D": max(16, triton.next_power_of_2(D)), "HEADS": heads}
    programs = Hkv * -(-(Hq // Hkv) // heads)
    splits = num_splits(rows.slot_tables.shape[1] if rows.max_keys is None else rows.max_keys)
    tops, totals = torch.empty(2, splits, M, Hq, dtype=torch.float32, device=q.device)
    outs = torch.empty(splits, M, Hq, D, dtype=torch.float32, device=q.device)
    keys = (k_cache, v_cache, rows.slot_tables, rows.seqs, rows.prefix_lens, rows.path_lens)
    shared = (q, *keys, tops, totals, outs, M, q.stride(0), rows.slot_tables.shape[1], D**-0.5 * _LOG2_E)
    if splits:
        num_tiles = _num_tiles(M, heads, D * k_cache.itemsize)
        tiles = _tiles(rows, num_tiles * _TILE.value // heads)
        depth = _DEPTH if D * k_cache.itemsize <= _NARROW else _WIDE_DEPTH
        _prefix_kernel[(tiles.shape[0], programs, splits)](
            *shared, tiles, TILES=num_tiles, num_warps=4, num_stages=depth, **sizes
        )
    _tail_kernel[(M, programs)](*shared, rows.paths, rows.paths.shape[1], out, num_warps=4, num_stages=3, **sizes)
