"""Runs the layers of a decoder on CUDA, with nine or ten launches per dense layer.

A matrix product is computed in splits along K, and the next operation adds the splits when it reads the product. If
`gate_up` has one split, its kernel also computes SwiGLU, which saves a launch. The results have the same bits as
the results of `kernels.decoder.decoder_reference`, which calls one operation after the other. Passes with LoRA adapters
use that reference. A row without an adapter therefore has the same bits in a pass with adapters and in a pass without.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from kernels.attention import attention
from kernels.cuda.linear import linear_parts
from kernels.cuda.norm import add_rms_norm, rms_norm
from kernels.cuda.parts import Parts
from kernels.cuda.rope import rope_write
from kernels.cuda.swiglu import swiglu_linear
from kernels.decoder import DecoderLayers, DecoderRows
from kernels.linear import LinearWeight
from kernels.moe import mix


def _parts(x: Tensor, weight: LinearWeight) -> Parts:
    return linear_parts(x, weight.data, weight.scales, weight.bias)


def decoder(
    layers: DecoderLayers,
    residual: Tensor,
    rows: DecoderRows,
    keys: Sequence[Tensor],
    values: Sequence[Tensor],
    tap_layers: Sequence[int],
    qkv_prefix: Tensor | None,
) -> tuple[Tensor, Tensor | None]:
    """Launches `kernels.decoder.decoder`, which has checked `tap_layers`."""
    shape = layers.shape
    M, D, Hq = residual.shape[0], shape.head_dim, shape.num_heads
    norms = [layer.input_norm for layer in layers.layers[1:]] + [layers.final_norm]
    taps: dict[int, Tensor] = {}
    normed = rms_norm(residual, layers.layers[0].input_norm, shape.norm_eps, shape.dtype)
    for index, (layer, k_cache, v_cache) in enumerate(zip(layers.layers, keys, values, strict=True)):
        if index in tap_layers:
            taps[index] = residual.to(shape.dtype, copy=True)
        normed = normed if qkv_prefix is None else torch.cat([qkv_prefix, normed], dim=-1)
        queries = torch.empty(M, Hq, D, dtype=torch.float32, device=residual.device)
        rope_write(
            _parts(normed, layer.qkv),
            layers.cosines,
            layers.sines,
            rows.positions,
            rows.slots,
            k_cache,
            v_cache,
            layer.head_norms,
            queries.flatten(1),
        )
        attended = attention(queries, k_cache, v_cache, rows.attention).flatten(1)
        normed = add_rms_norm(_parts(attended, layer.output), residual, layer.post_norm, shape.norm_eps, shape.dtype)
        if layer.mixture is not None:
            mix(normed, layer.mixture, add_to=residual)
            normed = rms_norm(residual, norms[index], shape.norm_eps, shape.dtype)
            continue
        gate_up = layer.mlp.gate_up
        activated = swiglu_linear(normed, gate_up.data, gate_up.scales, gate_up.bias)
        normed = add_rms_norm(_parts(activated, layer.mlp.down), residual, norms[index], shape.norm_eps, shape.dtype)
    if len(layers.layers) in tap_layers:
        taps[len(layers.layers)] = residual.to(shape.dtype)
    return normed, torch.stack([taps[index] for index in tap_layers], dim=1) if tap_layers else None
