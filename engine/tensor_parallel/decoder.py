"""One rank's part of a dense decoder (engine/models/dense.py).

Each layer gathers four times: the attended values, the attention's output, the activations and the MLP's output. Each
rank normalizes all columns after the gather. The kernels are those of the unsharded pass, which divides the outputs of
a product among threads as the ranks do here, so all bits are equal.

Shape letters: M rows, H the hidden size, D the elements of a head.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.cache.kv_cache import KVCache
from engine.config import ModelConfig
from engine.models.base import Hidden
from engine.tensor_parallel.cut import Cut
from engine.tensor_parallel.group import Group
from kernels.attention import attention
from kernels.decoder import DecoderRows, LayerWeights
from kernels.linear import LinearWeight, linear
from kernels.lora import LoraRun, LoraWeight, lora
from kernels.norm import rms_norm
from kernels.rope import rope_write
from kernels.swiglu import swiglu
from workers.planning import OUTPUT_UNIT

_Updates = Sequence[tuple[LoraRun, LoraWeight | None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardWeights:
    """The weights of one rank; norms and routers are complete.

    embedding: [V, columns of the rank], of all tokens.
    lm_head_packed: the rank's part of the vocabulary.
    """

    embedding: Tensor
    layers: tuple[LayerWeights, ...]
    final_norm: Tensor
    lm_head_packed: LinearWeight


class DecoderShard:
    """Every rank calls the same methods with the same arguments."""

    def __init__(
        self,
        config: ModelConfig,
        weights: ShardWeights,
        tables: tuple[Tensor, Tensor],
        dtype: torch.dtype,
        cut: Cut,
        group: Group,
    ) -> None:
        """config: of the whole model. tables: rotary, [positions, D / 2]."""
        self.config = config
        self.weights = weights
        self.dtype = dtype
        self.device = weights.embedding.device
        self.cosines, self.sines = (table.contiguous() for table in tables)
        self.cut = cut
        self.group = group
        parts = cut.all_ranks()
        self._hidden_widths = [len(part.hidden) for part in parts]
        self._head_widths = [len(part.heads) * config.head_dim for part in parts]
        self._activated_widths = [len(part.part(config.intermediate_size, OUTPUT_UNIT)) for part in parts]
        self._vocabulary_widths = [len(part.vocabulary) for part in parts]

    @torch.inference_mode()
    def forward(
        self,
        token_ids: Tensor,
        rows: DecoderRows,
        cache: KVCache,
        *,
        layers: Sequence[int],
        tap_layers: Sequence[int],
        runs: Sequence[LoraRun],
    ) -> Hidden:
        """Writes the keys and values of the rank's heads to the cache.

        layers: indices of the layers to run; `cache` has one for each. The other arguments are those of `decoder`.
        """
        residual = self.group.gather(self.weights.embedding[token_ids], self._hidden_widths).float()  # [M, H]
        taps: dict[int, Tensor] = {}
        for place, index in enumerate(layers):
            if place in tap_layers:
                taps[place] = residual.to(self.dtype, copy=True)
            layer = self.weights.layers[index]
            updates = [(run, run.layers[index]) for run in runs]
            residual = self._attend(
                layer,
                residual,
                rows,
                (cache.keys[place], cache.values[place]),
                [(run, update.qkv) for run, update in updates],
                [(run, update.output) for run, update in updates],
            )
            residual = self._mlp(
                layer,
                residual,
                [(run, update.gate_up) for run, update in updates],
                [(run, update.down) for run, update in updates],
            )
        taps[len(layers)] = residual.to(self.dtype)
        final = self._norm(residual, self.weights.final_norm)
        return Hidden(final, torch.stack([taps[place] for place in tap_layers], dim=1) if tap_layers else None)

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor | None:
        """Returns logits [M, V] float32 on rank 0, None on the others. hidden: [M, H] on every rank."""
        return self.group.gather_to_first(linear(hidden, self.weights.lm_head_packed), self._vocabulary_widths)

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return rms_norm(x, weight, self.config.norm_eps, self.dtype)

    def _attend(
        self,
        layer: LayerWeights,
        residual: Tensor,
        rows: DecoderRows,
        caches: tuple[Tensor, Tensor],
        qkv_updates: _Updates,
        output_updates: _Updates,
    ) -> Tensor:
        M, D = residual.shape[0], self.config.head_dim
        normed = self._norm(residual, layer.input_norm)
        qkv = linear(normed, layer.qkv)
        lora(normed, qkv, qkv_updates)
        rope_write(qkv, self.cosines, self.sines, rows.positions, rows.slots, *caches, layer.head_norms)
        q = qkv.view(M, -1, D)[:, : len(self.cut.heads)]  # [M, the rank's heads, D]
        own = attention(q, *caches, rows.attention).view(M, -1)
        return self._added(residual, self.group.gather(own, self._head_widths), layer.output, output_updates)

    def _mlp(self, layer: LayerWeights, residual: Tensor, gate_up_updates: _Updates, down_updates: _Updates) -> Tensor:
        normed = self._norm(residual, layer.post_norm)
        gate_up = linear(normed, layer.mlp.gate_up)
        lora(normed, gate_up, gate_up_updates)
        activated = self.group.gather(swiglu(gate_up, self.dtype), self._activated_widths)
        return self._added(residual, activated, layer.mlp.down, down_updates)

    def _added(self, residual: Tensor, x: Tensor, weight: LinearWeight, updates: _Updates) -> Tensor:
        """Returns the residual [M, H] plus the product; each rank adds in its own columns."""
        own = residual[:, self.cut.hidden.start : self.cut.hidden.stop].clone(memory_format=torch.contiguous_format)
        linear(x, weight, add_to=own)
        lora(x, own, updates)
        return self.group.gather(own, self._hidden_widths)
