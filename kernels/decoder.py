"""Runs all layers of a dense decoder and the final norm over M rows, which are the input tokens of a forward pass.

    each layer:  residual += output(attention(rope(qkv(norm(residual)))))
                 residual += down(swiglu(gate_up(norm(residual))))     or a mixture of experts (kernels/moe.py)
    hidden = norm(residual)

Some drafters read intermediate hidden states, which are called taps: a tap is the residual stream at the input of a
layer. `tap_layers` lists the indices of these layers.

The residual stream is float32. It is cast to the weights' dtype for matrix products. The reference calls one operation
after the other. The compiled pass calls the same C functions in the same order without returning to Python, so it gives
the same bits.

H is the hidden size, Hq and Hkv are the numbers of query and KV heads, and D is the head dimension.
"""

import ctypes
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from kernels.attention import AttentionRows, attention, has_compiled_attention
from kernels.checks import DTYPE_CODES, check_tensor
from kernels.cpu import structures
from kernels.cpu.library import library
from kernels.cpu.structures import LONG as _LONG
from kernels.cpu.structures import POINTER as _POINTER
from kernels.cpu.structures import address as _address
from kernels.experts import Expert
from kernels.linear import LinearWeight, linear
from kernels.lora import LoraRun, StackedRows, lora, stacked_lora
from kernels.moe import Mixture, mix
from kernels.norm import rms_norm
from kernels.rope import HeadNorms, rope_write
from kernels.swiglu import swiglu

_BLOCK = 32  # outputs per packed block, as in cpu/ops.h
_Product = Literal["qkv", "output", "gate_up", "down"]  # names of a layer's products, as in LoraLayer


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerWeights:
    """A dense layer has `gate_up` and `down`; other layers have `mixture`."""

    input_norm: Tensor  # [H] float32
    qkv: LinearWeight
    head_norms: HeadNorms | None
    output: LinearWeight
    post_norm: Tensor  # [H] float32
    gate_up: LinearWeight | None = None
    down: LinearWeight | None = None
    mixture: Mixture | None = None

    @property
    def mlp(self) -> Expert:
        """Returns the MLP of a dense layer."""
        assert self.gate_up is not None  # the constructor of DecoderLayers has checked this
        assert self.down is not None
        return Expert(self.gate_up, self.down)

    @property
    def products(self) -> dict[str, LinearWeight]:
        """Returns the weights by name. The weights of the first expert stand for the weights of all experts."""
        named = {"qkv": self.qkv, "output": self.output}
        if self.mixture is not None:
            named["router"], expert = self.mixture.router, self.mixture.experts.experts[0]
        else:
            expert = self.mlp
        return named | {"gate_up": expert.gate_up, "down": expert.down}


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderShape:
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    norm_eps: float
    dtype: torch.dtype


@dataclass(frozen=True, slots=True)
class DecoderRows:
    """M rows of one pass.

    positions: [M] int64.
    slots: [M] int64. The entry of the KV cache that each row writes; no two rows may have the same slot.
    attention: the keys that each row attends to, which include the row's own key.
    """

    positions: Tensor
    slots: Tensor
    attention: AttentionRows


# The structures below have the same fields, in the same order, as the structures of cpu/decoder.h and cpu/ops.h.
class _Layer(ctypes.Structure):
    _fields_ = (
        *((name, _POINTER) for name in ("input_norm", "post_norm", "q_norm", "k_norm")),
        *((name, structures.Linear) for name in ("qkv", "output", "gate_up", "down")),
        ("mixture", _POINTER),
    )


class _Decoder(ctypes.Structure):
    _fields_ = (
        *((name, _POINTER) for name in ("layers", "final_norm", "cosines", "sines")),
        *((name, _LONG) for name in ("num_layers", "H", "I", "Hq", "Hkv", "D")),
        ("eps", ctypes.c_float),
        ("dtype", ctypes.c_int32),
    )


class _Rows(ctypes.Structure):
    _fields_ = (
        *((name, _POINTER) for name in ("slot_tables", "paths", "seqs", "prefix_lens", "path_lens")),
        *((name, _LONG) for name in ("table_stride", "path_stride")),
    )


class _Pass(ctypes.Structure):
    _fields_ = (
        *((name, _POINTER) for name in ("k_caches", "v_caches", "positions", "slots")),
        ("rows", _Rows),
        ("M", _LONG),
        *((name, _POINTER) for name in ("residual", "hidden", "taps", "tap_layers")),
        ("num_taps", _LONG),
        ("qkv_prefix", _POINTER),
        ("qkv_prefix_width", _LONG),
    )


class _Caches:
    """Addresses of the layers' KV caches. The addresses are kept between passes, because caches are rarely replaced."""

    def __init__(self, shape: DecoderShape, num_layers: int) -> None:
        self._shape = shape
        self._pointers = _POINTER * num_layers
        self._located: tuple[weakref.ref[Tensor], weakref.ref[Tensor]] | None = None  # first layer's keys and values

    def locate(self, keys: Sequence[Tensor], values: Sequence[Tensor]) -> tuple[int, int]:
        """Returns the addresses of the two arrays of cache pointers.

        Raises: ValueError: shapes or dtypes do not fit.
        """
        if self._located is None or self._located[0]() is not keys[0] or self._located[1]() is not values[0]:
            shape = self._shape
            for cache in (*keys, *values):
                check_tensor(cache, "cache", (keys[0].shape[0], shape.num_kv_heads, shape.head_dim), shape.dtype)
            self._keys, self._values = self._pointers(*map(_address, keys)), self._pointers(*map(_address, values))
            self._located = weakref.ref(keys[0]), weakref.ref(values[0])
        return ctypes.addressof(self._keys), ctypes.addressof(self._values)


class DecoderLayers:
    """A decoder's layers, final norm [H] and rotary tables [positions, D / 2].

    All weights are float32, except those of the matrix products.
    """

    def __init__(
        self,
        shape: DecoderShape,
        layers: tuple[LayerWeights, ...],
        final_norm: Tensor,
        cosines: Tensor,
        sines: Tensor,
    ) -> None:
        for norms in (layer.head_norms for layer in layers):
            if norms is not None and norms.eps != shape.norm_eps:
                raise ValueError(f"head norms must share the layers' eps {shape.norm_eps}, got {norms.eps}")
        self.shape = shape
        self.layers = layers
        self.final_norm = final_norm
        self.cosines = cosines.contiguous()
        self.sines = sines.contiguous()
        if any((layer.gate_up is None or layer.down is None) == (layer.mixture is None) for layer in layers):
            raise ValueError("each layer must have either gate_up and down, or a mixture of experts")
        packed = all(weight.packed for layer in layers for weight in layer.products.values())
        packed = packed and all(layer.mixture is None or layer.mixture.experts.structure for layer in layers)
        compiled = has_compiled_attention(shape.num_heads, shape.num_kv_heads, shape.head_dim)
        dense = any(layer.mixture is None for layer in layers)
        compiled = compiled and (not dense or shape.intermediate_size % _BLOCK == 0)
        # The arguments of the compiled pass; None if it does not support this shape or machine.
        self.structure = self._build() if packed and compiled and library() is not None else None
        self.caches = _Caches(shape, len(layers))

    def _build(self) -> _Decoder:
        shape = self.shape
        # these objects are stored, because the structures below hold only their addresses
        self._c_mixtures = [_mixture(layer.mixture) for layer in self.layers]
        self._c_layers = (_Layer * len(self.layers))(*map(_layer, self.layers, self._c_mixtures))
        return _Decoder(
            ctypes.addressof(self._c_layers),
            self.final_norm.data_ptr(),
            self.cosines.data_ptr(),
            self.sines.data_ptr(),
            len(self.layers),
            shape.hidden_size,
            shape.intermediate_size,
            shape.num_heads,
            shape.num_kv_heads,
            shape.head_dim,
            shape.norm_eps,
            DTYPE_CODES[shape.dtype],
        )


def _mixture(mixture: Mixture | None) -> structures.Mixture | None:
    if mixture is None:
        return None
    experts = mixture.experts.structure
    assert experts is not None  # DecoderLayers calls this function only if all mixtures have it
    return structures.Mixture(
        experts, structures.Linear.of(mixture.router), mixture.num_chosen, int(mixture.normalized)
    )


def _layer(layer: LayerWeights, mixture: structures.Mixture | None) -> _Layer:
    norms = layer.head_norms
    dense = (None, None) if mixture else (layer.gate_up, layer.down)
    return _Layer(
        layer.input_norm.data_ptr(),
        layer.post_norm.data_ptr(),
        None if norms is None else norms.query.data_ptr(),
        None if norms is None else norms.key.data_ptr(),
        *map(structures.Linear.of, (layer.qkv, layer.output)),
        *(structures.Linear() if weight is None else structures.Linear.of(weight) for weight in dense),
        None if mixture is None else ctypes.addressof(mixture),
    )


def decoder_reference(
    layers: DecoderLayers,
    residual: Tensor,
    rows: DecoderRows,
    keys: Sequence[Tensor],
    values: Sequence[Tensor],
    tap_layers: Sequence[int] = (),
    lora_runs: Sequence[LoraRun] = (),
    qkv_prefix: Tensor | None = None,
    stacked: StackedRows | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Reference of `decoder`. It calls one operation after the other."""
    shape = layers.shape
    M, D, num_heads = residual.shape[0], shape.head_dim, shape.num_heads
    taps: dict[int, Tensor] = {}

    def add_lora(index: int, product: _Product, x: Tensor, out: Tensor) -> None:
        lora(x, out, [(run, getattr(run.layers[index], product)) for run in lora_runs])
        if stacked is not None and product in stacked.layers[index]:
            stacked_lora(x, out, stacked.adapters, stacked.layers[index][product], num_runs=stacked.num_runs)

    for index, (layer, k_cache, v_cache) in enumerate(zip(layers.layers, keys, values, strict=True)):
        if index in tap_layers:
            taps[index] = residual.to(shape.dtype, copy=True)
        normed = rms_norm(residual, layer.input_norm, shape.norm_eps, shape.dtype)
        normed = normed if qkv_prefix is None else torch.cat([qkv_prefix, normed], dim=-1)
        qkv = linear(normed, layer.qkv)
        add_lora(index, "qkv", normed, qkv)
        rope_write(qkv, layers.cosines, layers.sines, rows.positions, rows.slots, k_cache, v_cache, layer.head_norms)
        q = qkv.view(M, -1, D)[:, :num_heads]  # [M, Hq, D]
        attended = attention(q, k_cache, v_cache, rows.attention).view(M, num_heads * D)
        linear(attended, layer.output, add_to=residual)
        add_lora(index, "output", attended, residual)
        normed = rms_norm(residual, layer.post_norm, shape.norm_eps, shape.dtype)
        if layer.mixture is not None:
            mix(normed, layer.mixture, add_to=residual)
            continue
        gate_up = linear(normed, layer.mlp.gate_up)
        add_lora(index, "gate_up", normed, gate_up)
        activated = swiglu(gate_up, shape.dtype)
        linear(activated, layer.mlp.down, add_to=residual)
        add_lora(index, "down", activated, residual)
    taps[len(layers.layers)] = residual.to(shape.dtype)
    hidden = rms_norm(residual, layers.final_norm, shape.norm_eps, shape.dtype)
    return hidden, torch.stack([taps[index] for index in tap_layers], dim=1) if tap_layers else None


def decoder(
    layers: DecoderLayers,
    residual: Tensor,
    rows: DecoderRows,
    keys: Sequence[Tensor],
    values: Sequence[Tensor],
    tap_layers: Sequence[int] = (),
    lora_runs: Sequence[LoraRun] = (),
    qkv_prefix: Tensor | None = None,
    stacked: StackedRows | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Writes the rows' keys and values to the caches and returns the rows' hidden states.

    Args:
        residual: [M, H] float32, the tokens' embeddings; overwritten.
        keys, values: per layer [slots, Hkv, D] in the layers' dtype.
        tap_layers: T layer indices. Index i requests the input of layer i; the number of layers requests the output of
            the last layer before the final norm.
        lora_runs: runs of rows with an adapter. A pass with adapters uses the reference, which calls `lora`.
        qkv_prefix: [M, Kp] in the layers' dtype. Additional input of the qkv product, whose weight then has Kp + H
            columns; the normed residual follows it.
        stacked: the adapter of each row, on CUDA. A pass with adapters uses the reference, which calls `stacked_lora`.

    Returns: hidden states [M, H] after the final norm, and the inputs [M, T, H] of the layers in `tap_layers`, or None
        if `tap_layers` is empty. Both are in the layers' dtype.
    Raises:
        ValueError: shapes or dtypes do not fit, or a layer in `tap_layers` does not exist.
        MemoryError: there is no memory for intermediate results.
    """
    shape, structure = layers.shape, layers.structure
    if not all(0 <= index <= len(layers.layers) for index in tap_layers):
        raise ValueError(f"tap_layers must be in 0..{len(layers.layers)}, got {list(tap_layers)}")
    if structure is None or residual.device.type != "cpu" or lora_runs or stacked is not None:
        if residual.is_cuda and not lora_runs and stacked is None:
            from kernels.cuda.decoder import decoder as launch  # imported here, because triton requires CUDA

            return launch(layers, residual, rows, keys, values, tap_layers, qkv_prefix)
        return decoder_reference(layers, residual, rows, keys, values, tap_layers, lora_runs, qkv_prefix, stacked)
    M = residual.shape[0]
    check_tensor(residual, "residual", (M, shape.hidden_size), torch.float32)
    qkv_prefix_width = layers.layers[0].qkv.in_features - shape.hidden_size
    if qkv_prefix is not None:
        check_tensor(qkv_prefix, "qkv_prefix", (M, qkv_prefix_width), shape.dtype)
    elif qkv_prefix_width:
        raise ValueError(f"qkv_prefix must be [{M}, {qkv_prefix_width}], got None")
    check_tensor(rows.positions, "positions", (M,), torch.int64)
    check_tensor(rows.slots, "slots", (M,), torch.int64)
    rows.attention.check()
    k_caches, v_caches = layers.caches.locate(keys, values)
    hidden = torch.empty(M, shape.hidden_size, dtype=shape.dtype)
    taps = torch.empty(M, len(tap_layers), shape.hidden_size, dtype=shape.dtype) if tap_layers else None
    c_tap_layers = (_LONG * len(tap_layers))(*tap_layers)
    c_pass = _Pass(
        k_caches,
        v_caches,
        rows.positions.data_ptr(),
        rows.slots.data_ptr(),
        _c_rows(rows.attention),
        M,
        *map(_address, (residual, hidden, taps)),
        ctypes.addressof(c_tap_layers),
        len(tap_layers),
        _address(qkv_prefix),
        qkv_prefix_width,
    )
    kernels = library()
    assert kernels is not None  # the structure exists only if the kernels are loaded
    if kernels.slipstream_decoder(ctypes.addressof(structure), ctypes.addressof(c_pass)) != 0:
        raise MemoryError(f"no memory for a pass of {M} rows")
    return hidden, taps


def _c_rows(rows: AttentionRows) -> _Rows:
    addresses = map(_address, (rows.slot_tables, rows.paths, rows.seqs, rows.prefix_lens, rows.path_lens))
    return _Rows(*addresses, rows.slot_tables.shape[1], rows.paths.shape[1])
