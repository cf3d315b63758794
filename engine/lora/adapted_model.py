"""A model with one LoRA adapter on every row, for training drafters on the same hidden states as in serving."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from engine.cache.kv_cache import KVCache
from engine.lora.adapters import Adapters, LoraAdapter
from engine.lora.stacks import LoraStacks
from engine.models.base import Hidden, Model, Rows, SharedWeights
from engine.models.reading import read_text
from kernels.lora import LoraRun, StackedRows


class AdaptedModel:
    """Computes rows with the same bits as an engine that uses this adapter.

    The engine and graph decoding do not use this class: an engine has the adapter as its `adapters.default`.
    """

    def __init__(self, model: Model, adapter: LoraAdapter) -> None:
        self.base, self.adapter = model, adapter
        self.config, self.dtype, self.device = model.config, model.dtype, model.device
        self._stacks: LoraStacks | None = None
        if model.device.type == "cuda":
            self._stacks = LoraStacks(Adapters(model), model.device)
            self._stacks.rebuild_with([adapter])

    @property
    def weights(self) -> SharedWeights:
        return self.base.weights

    @property
    def lm_head(self) -> Tensor:
        return self.base.lm_head

    @property
    def max_positions(self) -> int:
        return self.base.max_positions

    def forward(self, rows: Rows, cache: KVCache, tap_layers: Sequence[int] = ()) -> Hidden:
        num_rows = rows.token_ids.shape[0]
        if self._stacks is None:
            adapted = replace(rows, lora_runs=(LoraRun(0, num_rows, self.adapter.layers),))
        else:
            of_rows = torch.zeros(num_rows, dtype=torch.int64, device=self.device)
            adapted = replace(rows, stacked=StackedRows(of_rows, 1, self._stacks.layers))
        return self.base.forward(adapted, cache, tap_layers)

    def logits(self, hidden: Tensor) -> Tensor:
        return self.base.logits(hidden)

    def hidden_states(self, token_ids: Tensor, tap_layers: Sequence[int] = ()) -> Hidden:
        return read_text(self, token_ids, tap_layers)
