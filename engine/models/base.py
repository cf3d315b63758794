"""The interface between a model and the engine, drafters and training.

A row is one token at one position, with the cache slot for its key and value. Prefill, plain decoding, chains and trees
are all rows of one pass; they differ only in the keys that a row attends to.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from engine.cache.kv_cache import KVCache
from engine.config import ModelConfig
from kernels.decoder import DecoderRows
from kernels.lora import LoraRun, StackedRows


@dataclass(frozen=True, slots=True)
class Rows:
    """M rows of one pass; token_ids [M] int64. LoRA updates are in `stacked` on CUDA and in `lora_runs` elsewhere."""

    token_ids: Tensor
    rows: DecoderRows
    lora_runs: tuple[LoraRun, ...] = ()
    stacked: StackedRows | None = None


@dataclass(frozen=True, slots=True)
class Hidden:
    """Hidden states of a pass, in the model's dtype.

    final: [M, H] after the final norm.
    taps: [M, T, H], the residual stream at the input of each of `tap_layers`, in their order; None if there are none.
    """

    final: Tensor
    taps: Tensor | None


class SharedWeights(Protocol):
    """Weights of the target that drafters share."""

    @property
    def embedding(self) -> Tensor:
        """[V, H]"""


class Model(Protocol):
    """A causal model over rows, as the modules of this package implement it.

    A row's hidden state, keys and values have the same bits whatever other rows are in the pass.
    """

    config: ModelConfig  # includes the cache's layout
    dtype: torch.dtype
    device: torch.device

    @property
    def weights(self) -> SharedWeights: ...

    @property
    def lm_head(self) -> Tensor:
        """[V, H], unpacked."""

    @property
    def max_positions(self) -> int: ...

    def forward(self, rows: Rows, cache: KVCache, tap_layers: Sequence[int] = ()) -> Hidden:
        """Writes the rows' keys and values.

        tap_layers: i taps the input of layer i; the number of layers taps the output of the last, before the final
            norm.
        """

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden [M, H] after the final norm, in the model's dtype -> [M, V] float32."""

    def hidden_states(self, token_ids: Tensor, tap_layers: Sequence[int] = ()) -> Hidden:
        """token_ids [T] int64 from position 0 -> T rows, with the same bits as in serving."""
