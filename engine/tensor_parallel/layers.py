"""One rank's part of the layers, dense or with a mixture of experts (kernels/decoder.py), or with latent attention.

Each layer gathers four times: the attended values, the attention's output, the activations and the output of the MLP.
After a gather, each rank normalizes all columns. The kernels are the same as in the unsharded pass. A kernel computes
an output with the same bits, whichever other outputs it computes in the same call.

Shape letters: M rows, H the hidden size, D the elements of a head.
"""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from engine.config import ModelConfig
from engine.models.deepseek import DeepseekLayers
from engine.models.deepseek_weights import DeepseekLayer, ExpertsWeights
from engine.tensor_parallel.exchange import Exchange, Updates
from engine.tensor_parallel.mixture import mix_own_columns
from kernels.attention import attention
from kernels.decoder import DecoderRows, LayerWeights
from kernels.experts import Expert
from kernels.linear import linear
from kernels.lora import LoraRun, lora
from kernels.moe import route, route_softmax
from kernels.norm import rms_norm
from kernels.rope import rope_write
from kernels.swiglu import swiglu


class Layers(Protocol):
    """One rank's part of the layers. All ranks must call `run` with the same arguments, except for their own caches."""

    def norm(self, x: Tensor, weight: Tensor) -> Tensor:
        """Normalizes x [M, H] float32. Returns [M, H] in the model's dtype."""

    def run(
        self, index: int, residual: Tensor, rows: DecoderRows, keys: Tensor, values: Tensor, runs: Sequence[LoraRun]
    ) -> Tensor:
        """Returns residual [M, H] float32 plus the output of the layer `index`.

        keys, values: the rank's cache of the layer. The call writes the keys and values of the rows to it.
        """


class DenseLayers:
    """The layers of Llama's family, Mixtral and Qwen3-MoE."""

    def __init__(
        self,
        config: ModelConfig,
        layers: tuple[LayerWeights, ...],
        tables: tuple[Tensor, Tensor],
        dtype: torch.dtype,
        exchange: Exchange,
    ) -> None:
        """tables: rotary cosines and sines, [positions, D / 2] each."""
        self._config, self._layers, self._dtype, self._exchange = config, layers, dtype, exchange
        self._cosines, self._sines = (table.contiguous() for table in tables)

    def norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return rms_norm(x, weight, self._config.norm_eps, self._dtype)

    def run(
        self, index: int, residual: Tensor, rows: DecoderRows, keys: Tensor, values: Tensor, runs: Sequence[LoraRun]
    ) -> Tensor:
        layer, updates = self._layers[index], [(run, run.layers[index]) for run in runs]
        attended = self._attend(layer, residual, rows, keys, values, [(run, update.qkv) for run, update in updates])
        output_updates = [(run, update.output) for run, update in updates]
        residual = self._exchange.added(residual, attended, layer.output, output_updates)
        normed = self.norm(residual, layer.post_norm)
        if layer.mixture is not None:
            logits = linear(normed, layer.mixture.router)
            chosen, weights = route_softmax(logits, layer.mixture.num_chosen, normalized=layer.mixture.normalized)
            mixed = mix_own_columns(normed, chosen, weights, layer.mixture.experts, self._exchange)
            return self._exchange.hidden(self._exchange.own_columns(residual) + mixed)
        gate_up = linear(normed, layer.mlp.gate_up)
        lora(normed, gate_up, [(run, update.gate_up) for run, update in updates])
        activated = self._exchange.activated(swiglu(gate_up, self._dtype), layer.mlp.down.in_features)
        return self._exchange.added(residual, activated, layer.mlp.down, [(run, u.down) for run, u in updates])

    def _attend(
        self, layer: LayerWeights, residual: Tensor, rows: DecoderRows, keys: Tensor, values: Tensor, updates: Updates
    ) -> Tensor:
        M, (num_kv_heads, D) = residual.shape[0], keys.shape[1:]
        normed = self.norm(residual, layer.input_norm)
        qkv = linear(normed, layer.qkv)
        lora(normed, qkv, updates)
        rope_write(qkv, self._cosines, self._sines, rows.positions, rows.slots, keys, values, layer.head_norms)
        heads = qkv.view(M, -1, D)
        q = heads[:, : heads.shape[1] - 2 * num_kv_heads]  # [M, the rank's heads, D]
        return self._exchange.heads(attention(q, keys, values, rows.attention).view(M, -1), D)


class LatentLayers:
    """The layers of DeepSeek-V3. Every rank computes and stores all latents, but only the queries of its own heads."""

    def __init__(
        self,
        config: ModelConfig,
        layers: tuple[DeepseekLayer, ...],
        tables: tuple[Tensor, Tensor],
        dtype: torch.dtype,
        exchange: Exchange,
    ) -> None:
        assert config.latent is not None  # deepseek_v3 configs always have it
        self._layers, self._dtype, self._exchange = layers, dtype, exchange
        self._value_dim = config.latent.value_dim
        self._whole = DeepseekLayers(config, tables, dtype)

    def norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return self._whole.norm(x, weight)

    def run(
        self, index: int, residual: Tensor, rows: DecoderRows, keys: Tensor, values: Tensor, runs: Sequence[LoraRun]
    ) -> Tensor:
        layer, exchange = self._layers[index], self._exchange
        own = self._whole.attend(layer.attention, self.norm(residual, layer.input_norm), rows, keys)
        residual = exchange.added(residual, exchange.heads(own, self._value_dim), layer.attention.output)
        normed = self.norm(residual, layer.post_norm)
        if not isinstance(layer.mlp, ExpertsWeights):
            return exchange.added(residual, self._activated(normed, layer.mlp), layer.mlp.down)
        chosen, weights = route(normed.float(), layer.mlp.routing)
        mixed = mix_own_columns(normed, chosen, weights, layer.mlp.experts, exchange)
        linear(self._activated(normed, layer.mlp.shared), layer.mlp.shared.down, add_to=mixed)
        return exchange.hidden(exchange.own_columns(residual) + mixed)

    def _activated(self, x: Tensor, mlp: Expert) -> Tensor:
        return self._exchange.activated(swiglu(linear(x, mlp.gate_up), self._dtype), mlp.down.in_features)
