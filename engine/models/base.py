"""The interface between a model and the engine, drafters and training.

A row is one token at one position, with the cache slot for its key and value. A pass may combine rows of prefill, of
plain decoding and of drafts. These rows differ only in the keys that they attend to.

A tap is an intermediate hidden state that a pass returns for drafters: the residual stream at the input of a layer,
or, for the index `num_layers`, at the output of the last layer before the final norm.

Shape letters: M rows, H the hidden size, V the vocabulary size. T is the number of taps.
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
    """The rows of one pass.

    token_ids: [M] int64.
    lora_runs: consecutive rows with the same LoRA adapter, on devices other than CUDA.
    stacked: the LoRA adapters of the rows, on CUDA.
    """

    token_ids: Tensor
    rows: DecoderRows
    lora_runs: tuple[LoraRun, ...] = ()
    stacked: StackedRows | None = None


@dataclass(frozen=True, slots=True)
class Hidden:
    """Hidden states of a pass, in the model's dtype.

    final: [M, H] after the final norm.
    taps: [M, T, H], in the order of `tap_layers`; None if `tap_layers` is empty.
    """

    final: Tensor
    taps: Tensor | None


class SharedWeights(Protocol):
    """Weights of the target that drafters share."""

    @property
    def embedding(self) -> Tensor:
        """[V, H]"""


class Model(Protocol):
    """A causal model that computes rows.

    The bits of a row's hidden state, keys and values do not depend on the other rows of the pass.
    """

    config: ModelConfig  # includes the layout of the cache
    dtype: torch.dtype
    device: torch.device

    @property
    def weights(self) -> SharedWeights: ...

    @property
    def lm_head(self) -> Tensor:
        """[V, H], not packed for `kernels.linear`."""

    @property
    def max_positions(self) -> int: ...

    def forward(self, rows: Rows, cache: KVCache, tap_layers: Sequence[int] = ()) -> Hidden:
        """Returns the hidden states of the rows, and writes their keys and values to the cache.

        tap_layers: indices of the taps to return, in 0..num_layers.
        """

    def logits(self, hidden: Tensor) -> Tensor:
        """Returns logits [M, V] float32. hidden: [M, H] after the final norm, in the model's dtype."""

    def hidden_states(self, token_ids: Tensor, tap_layers: Sequence[int] = ()) -> Hidden:
        """Returns the hidden states of the tokens of a text, with the same bits as in serving. token_ids: [M] int64."""
