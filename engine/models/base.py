"""What a model is to the engine, to drafters and to training.

A row is one token at one position with one slot to write its key and value to. Prefill, plain decoding, chains and
trees are all rows of one pass: what differs is which keys a row attends to.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from engine.config import ModelConfig
from engine.kv_cache import KVCache
from kernels.decoder import DecoderRows
from kernels.lora import LoraRun, StackedRows


@dataclass(frozen=True, slots=True)
class Rows:
    """M rows of one pass; token_ids [M] int64. Low-rank updates are in `stacked` on CUDA, in `lora_runs` elsewhere."""

    token_ids: Tensor
    rows: DecoderRows
    lora_runs: tuple[LoraRun, ...] = ()
    stacked: StackedRows | None = None


@dataclass(frozen=True, slots=True)
class Hidden:
    """What a pass computed, in the model's dtype.

    final: [M, H] after the final norm.
    taps: [M, T, H], the residual streams where they enter the layers asked for, in their order; None where none are.
    """

    final: Tensor
    taps: Tensor | None


class SharedWeights(Protocol):
    """What drafters borrow of their target."""

    @property
    def embedding(self) -> Tensor:
        """[V, H]"""


class Model(Protocol):
    """A causal model over rows: `engine.model.Decoder` and what lies beside this file.

    A row's hidden state, and what the pass writes to the cache for it, have the same bits in any company of rows.
    """

    config: ModelConfig  # with the cache's layout
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

        tap_layers: i taps what enters layer i; the number of layers, what leaves the last, before the final norm.
        """

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden [M, H] after the final norm, in the model's dtype -> [M, V] float32."""

    def hidden_states(self, token_ids: Tensor, tap_layers: Sequence[int] = ()) -> Hidden:
        """token_ids [T] int64 of one sequence from position 0 -> rows in their order; the bits are those of serving."""
