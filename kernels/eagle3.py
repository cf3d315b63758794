"""The EAGLE-3 drafter on the CPU: one call of cpu/eagle3.c observes a pass of the target, another grows draft trees.

There is no reference here: engine/drafters/eagle3.py does the same with single operations where this module cannot be
used.

Shape letters: B trees, N budget, H hidden size, V size of the target's vocabulary, Vd size of the draft vocabulary.
"""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.checks import check_tensor
from kernels.cpu.library import library
from kernels.cpu.structures import LONG, POINTER, Linear, address
from kernels.decoder import DecoderLayers
from kernels.linear import LinearWeight

MAX_CANDIDATES = 16  # cpu/candidates.h


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of the growth of trees.

    width: maximum number of nodes of a tree on which the layer runs per level.
    num_candidates: maximum number of children of a node.
    least_gain: the layer runs on a level only if the level is expected to add this many accepted tokens per tree.
    least_survival: nodes with a smaller survival are dropped.
    first_scratch: the first of `B width (max_depth - 1)` cache slots for the nodes' keys and values.
    """

    budget: int
    max_depth: int
    width: int
    num_candidates: int
    least_gain: float
    least_survival: float
    max_position: int
    first_scratch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Root:
    """A sequence for which a tree is grown.

    length: the number of tokens of the sequence.
    table_row, prefix_len, tail: the context of the first level consists of the first `prefix_len` slots of row
        `table_row` of the slot table, and then of the slots `tail`.
    top_k: 0 for all tokens.
    extra: additional rows of lm_head [E, H], and their tokens [E] int64, which only this tree may propose.
    """

    length: int
    table_row: int
    prefix_len: int
    tail: Sequence[int]
    seed: int
    temperature: float
    top_p: float
    min_p: float
    top_k: int
    extra: tuple[LinearWeight, Tensor] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Fusion:
    """The weights that turn the target's taps into the layer's input.

    product: [H, K], where K is the size of all taps of a position.
    norms: [K] float32, the weights of the norms before the product, or None.
    num_norms: the K numbers are divided into this many equal parts, each of which is normalized.
    """

    product: LinearWeight
    norms: Tensor | None
    num_norms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedRow:
    """A position that a pass of the target has computed.

    pass_row: the position's row in the pass.
    token: the token after the position.
    table_row, prefix_len, tail: the position attends to the first `prefix_len` slots of row `table_row` of the slot
        table, and then to the slots `tail`, of which the last is its own `slot`.
    """

    pass_row: int
    token: int
    position: int
    slot: int
    table_row: int
    prefix_len: int
    tail: Sequence[int]


Tree = tuple[list[int], list[int], list[float]]  # tokens, parents (-1: the root) and survivals of the nodes


# The structures have the same fields, in the same order, as the structures of cpu/eagle3.c and cpu/candidates.h.
class _Eagle3(ctypes.Structure):
    _fields_ = (
        ("decoder", POINTER),
        ("lm_head", Linear),
        *((name, POINTER) for name in ("embedding", "token_norm", "vocab")),
        ("feeds_normed", LONG),
    )


class _Sampling(ctypes.Structure):
    _fields_ = (
        ("seed", ctypes.c_uint64),
        ("top_k", LONG),
        *((name, ctypes.c_float) for name in ("temperature", "top_p", "min_p")),
    )


class _Extra(ctypes.Structure):
    _fields_ = (("head", Linear), ("tokens", POINTER))


class _Growth(ctypes.Structure):
    _fields_ = (
        *((name, LONG) for name in ("num_trees", "budget", "max_depth", "width", "num_candidates")),
        *((name, ctypes.c_float) for name in ("least_gain", "least_survival")),
        *((name, POINTER) for name in ("read", "fed_back", "keys", "values", "slot_tables", "tails")),
        *((name, POINTER) for name in ("table_rows", "prefix_lens", "tail_lens")),
        *((name, LONG) for name in ("table_stride", "tail_stride")),
        ("lengths", POINTER),
        *((name, LONG) for name in ("max_position", "first_scratch")),
        *((name, POINTER) for name in ("sampling", "extras", "tokens", "parents", "survival", "counts")),
    )


class _Fusion(ctypes.Structure):
    _fields_ = (("product", Linear), ("norms", POINTER), ("num_norms", LONG))


class _Observation(ctypes.Structure):
    _fields_ = (
        ("M", LONG),
        *((name, POINTER) for name in ("taps", "pass_rows", "tokens", "positions", "slots")),
        *((name, POINTER) for name in ("slot_tables", "paths", "seqs", "prefix_lens", "path_lens")),
        *((name, LONG) for name in ("table_stride", "path_stride")),
        *((name, POINTER) for name in ("keys", "values", "read", "fed_back")),
    )


class TreeGrower:
    """The weights of a drafter, as the compiled functions read them."""

    def __init__(
        self,
        layers: DecoderLayers,
        *,
        fusion: Fusion,
        lm_head: LinearWeight,
        embedding: Tensor,
        token_norm: Tensor,
        vocab: Tensor,
        feeds_normed: bool,
    ) -> None:
        """
        Args:
            layers: one layer with the final norm that `lm_head` [Vd, H] reads. Its qkv product reads 2 H numbers.
            embedding: [V, H] in the layers' dtype, contiguous. token_norm: [H] float32. vocab: [Vd] int64.
            feeds_normed: whether the next position reads the output of the final norm.
        Raises: ValueError: the compiled function does not support these weights (see `is_supported`).
        """
        if layers.structure is None or not is_supported(layers, fusion, lm_head, embedding):
            raise ValueError("the weights are not on the CPU, or not packed for its kernels")
        self._kept = (layers, fusion, lm_head, embedding, token_norm, vocab)  # the structure holds only their addresses
        self._hidden_size, self._dtype = layers.shape.hidden_size, layers.shape.dtype
        self._draft_vocab_size = lm_head.out_features
        self._tap_size = fusion.product.in_features
        self._fusion = _Fusion(Linear.of(fusion.product), address(fusion.norms), fusion.num_norms)
        self._structure = _Eagle3(
            ctypes.addressof(layers.structure),
            Linear.of(lm_head),
            *map(address, (embedding, token_norm, vocab)),
            int(feeds_normed),
        )

    def observe(
        self, taps: Tensor, rows: Sequence[ObservedRow], *, cache: tuple[Tensor, Tensor], slot_tables: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Runs the layer on M rows and writes their keys and values.

        taps: [rows of the pass, T, Ht] in the layers' dtype. cache, slot_tables: as in `grow`.
        Returns: `read`, [M, H] in the layers' dtype, the inputs of lm_head; and `fed_back`, [M, H] float32, the inputs
            of the layer at the next positions.
        Raises: ValueError: shapes or dtypes do not fit. MemoryError.
        """
        taps = taps.flatten(1).contiguous()
        check_tensor(taps, "taps", (None, self._tap_size), self._dtype)
        keys, values = self._check_cache(cache, slot_tables)
        M = len(rows)
        read = torch.empty(M, self._hidden_size, dtype=self._dtype)
        fed_back = torch.empty(M, self._hidden_size)
        pass_rows, tokens, positions, slots, seqs, prefix_lens, path_lens = (
            (LONG * M)(*column)
            for column in zip(
                *(
                    (row.pass_row, row.token, row.position, row.slot, row.table_row, row.prefix_len, len(row.tail))
                    for row in rows
                ),
                strict=True,
            )
        )
        paths, stride = _padded([row.tail for row in rows])
        observation = _Observation(
            M,
            address(taps),
            *(ctypes.addressof(column) for column in (pass_rows, tokens, positions, slots)),
            address(slot_tables),
            *(ctypes.addressof(column) for column in (paths, seqs, prefix_lens, path_lens)),
            *(slot_tables.shape[1], stride),
            *map(address, (keys, values, read, fed_back)),
        )
        kernels = library()
        assert kernels is not None  # the structure of the layers exists only if the kernels are loaded
        structures = (self._structure, self._fusion, observation)
        if kernels.slipstream_eagle3_observe(*map(ctypes.addressof, structures)) != 0:
            raise MemoryError(f"no memory for {M} rows")
        return read, fed_back

    def grow(
        self,
        roots: Sequence[Root],
        limits: Limits,
        *,
        read: Tensor,
        fed_back: Tensor,
        cache: tuple[Tensor, Tensor],
        slot_tables: Tensor,
    ) -> list[Tree]:
        """Grows a tree for each of the B roots.

        Args:
            read: [B, H] in the layers' dtype, the inputs of lm_head at the roots.
            fed_back: [B, H] float32, the inputs of the layer at the roots.
            cache: keys and values [slots, Hkv, D]. slot_tables: int32, as in `AttentionRows`.
        Raises: ValueError: shapes, dtypes or limits do not fit. MemoryError.
        """
        if not 1 <= limits.num_candidates <= MAX_CANDIDATES:
            raise ValueError(f"num_candidates must be in 1..{MAX_CANDIDATES}, got {limits.num_candidates}")
        B, N = len(roots), limits.budget
        check_tensor(read, "read", (B, self._hidden_size), self._dtype)
        check_tensor(fed_back, "fed_back", (B, self._hidden_size), torch.float32)
        keys, values = self._check_cache(cache, slot_tables)
        table_rows, prefix_lens, tail_lens, lengths = (
            (LONG * B)(*column)
            for column in zip(*((r.table_row, r.prefix_len, len(r.tail), r.length) for r in roots), strict=True)
        )
        tails, stride = _padded([root.tail for root in roots])
        sampling = (_Sampling * B)(*(_Sampling(r.seed, r.top_k, r.temperature, r.top_p, r.min_p) for r in roots))
        extras = (_Extra * B)(*map(self._extra, roots))
        tokens, parents, survival = (LONG * (B * N))(), (LONG * (B * N))(), (ctypes.c_float * (B * N))()
        counts = (LONG * B)()
        growth = _Growth(
            *(B, N, limits.max_depth, limits.width, min(limits.num_candidates, self._draft_vocab_size)),
            *(limits.least_gain, limits.least_survival),
            *map(address, (read, fed_back, keys, values, slot_tables)),
            *(ctypes.addressof(column) for column in (tails, table_rows, prefix_lens, tail_lens)),
            *(slot_tables.shape[1], stride, ctypes.addressof(lengths)),
            *(limits.max_position, limits.first_scratch),
            *(ctypes.addressof(column) for column in (sampling, extras, tokens, parents, survival, counts)),
        )
        kernels = library()
        assert kernels is not None  # the structure of the layers exists only if the kernels are loaded
        if kernels.slipstream_eagle3(ctypes.addressof(self._structure), ctypes.addressof(growth)) != 0:
            raise MemoryError(f"no memory for {B} trees")
        ends = [(N * index, N * index + count) for index, count in enumerate(counts)]
        return [(tokens[start:end], parents[start:end], survival[start:end]) for start, end in ends]

    def _extra(self, root: Root) -> _Extra:
        if root.extra is None:
            return _Extra()
        head, tokens = root.extra
        if not head.packed or (head.in_features, head.dtype) != (self._hidden_size, self._dtype):
            raise ValueError(f"extra rows must be packed, of size {self._hidden_size} and for {self._dtype}")
        check_tensor(tokens, "tokens", (head.out_features,), torch.int64)
        return _Extra(Linear.of(head), tokens.data_ptr())

    def _check_cache(self, cache: tuple[Tensor, Tensor], slot_tables: Tensor) -> tuple[Tensor, Tensor]:
        check_tensor(slot_tables, "slot_tables", (None, None), torch.int32)
        keys, values = cache
        check_tensor(keys, "keys", (None, *keys.shape[1:]), self._dtype)
        check_tensor(values, "values", tuple(keys.shape), self._dtype)
        return keys, values


def _padded(rows: Sequence[Sequence[int]]) -> tuple["ctypes.Array[ctypes.c_int32]", int]:
    """Returns rows of equal length, one after the other, and this length."""
    stride = max(map(len, rows))
    numbers = [number for row in rows for number in (*row, *(0,) * (stride - len(row)))]
    return (ctypes.c_int32 * len(numbers))(*numbers), stride


def is_supported(layers: DecoderLayers, fusion: Fusion, lm_head: LinearWeight, embedding: Tensor) -> bool:
    """Returns whether a TreeGrower can be made of these weights."""
    on_cpu = layers.structure is not None and lm_head.packed and fusion.product.packed
    return on_cpu and embedding.is_contiguous() and embedding.dtype == layers.shape.dtype
