"""DeepSeek-V3 over rows: latent attention and a mixture of experts.

As in the dense decoder, only attention combines rows, and a row attends only to the keys of its own sequence. The
residual stream is float32; the inputs of linear layers are in the weights' dtype. The cache stores one latent per
position (kernels/mla.py).

Shape letters: M rows, H the hidden size, Hq the number of heads, R the rank of the latent. A head's query has N
elements without and P elements with rotary embedding, and a head's value has Dv elements.

Source: DeepSeek-V3, arXiv:2412.19437.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from engine.cache.kv_cache import KVCache
from engine.config import ModelConfig
from engine.models.base import Hidden, Rows
from engine.models.deepseek_weights import DeepseekLayer, DeepseekWeights, ExpertsWeights, LatentWeights
from engine.models.reading import read_text
from kernels.decoder import DecoderRows
from kernels.experts import Expert, mix_experts
from kernels.linear import linear
from kernels.mla import LatentShape, Rotation, latent_attention, latent_write
from kernels.moe import route
from kernels.norm import rms_norm
from kernels.swiglu import swiglu

_LATENT_EPS = 1e-6  # for the norms inside attention, which do not use the model's norm_eps


class DeepseekLayers:
    """Runs layers with the weights that the caller passes to `run`. The MTP module also uses this class."""

    def __init__(self, config: ModelConfig, tables: tuple[Tensor, Tensor], dtype: torch.dtype) -> None:
        latent = config.latent
        assert latent is not None  # deepseek_v3 configs always have it
        self.rotation = Rotation(*tables)
        self._eps, self._dtype = config.norm_eps, dtype
        self._shape = LatentShape(
            rank=latent.rank,
            nope_dim=latent.nope_dim,
            rope_dim=latent.rope_dim,
            value_dim=latent.value_dim,
            interleaved=latent.interleaved,
            scale=latent.softmax_scale,
            norm_eps=_LATENT_EPS,
        )

    def norm(self, x: Tensor, weight: Tensor) -> Tensor:
        """Normalizes x [M, H] float32. Returns [M, H] in the model's dtype."""
        return rms_norm(x, weight, self._eps, self._dtype)

    def run(self, layer: DeepseekLayer, residual: Tensor, rows: DecoderRows, keys: Tensor) -> None:
        """Adds the layer's output to residual [M, H] float32. Writes the rows' latents to keys [slots, 1, R + P]."""
        attended = self.attend(layer.attention, self.norm(residual, layer.input_norm), rows, keys)
        linear(attended, layer.attention.output, add_to=residual)
        normed = self.norm(residual, layer.post_norm)
        if isinstance(layer.mlp, ExpertsWeights):
            expert_ids, weights = route(normed.float(), layer.mlp.routing)
            mixed = mix_experts(normed, expert_ids, weights, layer.mlp.experts)
            self._mlp(layer.mlp.shared, normed, mixed)
            residual += mixed
        else:
            self._mlp(layer.mlp, normed, residual)

    def attend(self, weights: LatentWeights, x: Tensor, rows: DecoderRows, keys: Tensor) -> Tensor:
        """Returns the attended values [M, heads of `weights` * Dv] of x [M, H], both in the model's dtype.

        Writes the latents to `keys`, as `run` does.
        """
        M, shape = x.shape[0], self._shape
        latent_write(
            linear(x, weights.latent), weights.latent_norm, shape, self.rotation, rows.positions, rows.slots, keys
        )
        if weights.query_down is not None and weights.query_norm is not None:
            x = rms_norm(linear(x, weights.query_down), weights.query_norm, _LATENT_EPS, self._dtype)
        q = linear(x, weights.query).view(M, len(weights.key_up), -1)  # [M, Hq, N + P]
        attended = latent_attention(
            q, weights.key_up, weights.value_up, shape, self.rotation, rows.positions, keys, rows.attention
        )
        return attended.view(M, -1)

    def _mlp(self, mlp: Expert, x: Tensor, add_to: Tensor) -> None:
        linear(swiglu(linear(x, mlp.gate_up), self._dtype), mlp.down, add_to=add_to)


class Deepseek:
    """A model of the type DeepSeek-V3.

    folder: the model's folder, from which the MTP module can be loaded (engine/models/deepseek_mtp.py).
    """

    def __init__(
        self,
        config: ModelConfig,
        weights: DeepseekWeights,
        tables: tuple[Tensor, Tensor],
        dtype: torch.dtype,
        folder: Path,
    ) -> None:
        self.config = config
        self.weights = weights
        self.dtype = dtype
        self.device = weights.embedding.device
        self.folder = folder
        cosines, sines = (table.to(self.device) for table in tables)
        self.layers = DeepseekLayers(config, (cosines, sines), dtype)

    def with_layers(self, indices: Sequence[int]) -> "Deepseek":
        """Returns a model of these layers only, which shares the weights."""
        weights = replace(self.weights, layers=tuple(self.weights.layers[index] for index in indices))
        tables = (self.layers.rotation.cosines, self.layers.rotation.sines)
        return Deepseek(replace(self.config, num_layers=len(indices)), weights, tables, self.dtype, self.folder)

    @property
    def lm_head(self) -> Tensor:
        return self.weights.lm_head

    @property
    def max_positions(self) -> int:
        return self.layers.rotation.cosines.shape[0]

    @torch.inference_mode()
    def forward(self, rows: Rows, cache: KVCache, tap_layers: Sequence[int] = ()) -> Hidden:
        """Raises: ValueError: an index in `tap_layers` is not in 0..num_layers."""
        weights, num_layers = self.weights, self.config.num_layers
        if not all(0 <= index <= num_layers for index in tap_layers):
            raise ValueError(f"tap_layers must be in 0..{num_layers}, got {list(tap_layers)}")
        residual = weights.embedding[rows.token_ids].float()  # [M, H]
        taps: dict[int, Tensor] = {}
        for index, (layer, keys) in enumerate(zip(weights.layers, cache.keys, strict=True)):
            if index in tap_layers:
                taps[index] = residual.to(self.dtype, copy=True)
            self.layers.run(layer, residual, rows.rows, keys)
        taps[num_layers] = residual.to(self.dtype)
        final = self.layers.norm(residual, weights.final_norm)
        return Hidden(final, torch.stack([taps[index] for index in tap_layers], dim=1) if tap_layers else None)

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor:
        return linear(hidden.contiguous(), self.weights.lm_head_packed)

    def hidden_states(self, token_ids: Tensor, tap_layers: Sequence[int] = ()) -> Hidden:
        return read_text(self, token_ids, tap_layers)
