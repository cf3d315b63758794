"""The model on rank 0: the engine calls it like any other model, and the model tells the other ranks to take part.

Only rank 0 schedules, budgets, drafts, verifies and samples. If a drafter shares the target's embedding or LM head,
rank 0 reads the complete matrix from the model's folder when the drafter first uses it.
"""

import itertools
import logging
import os
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from engine.cache.kv_cache import KVCache
from engine.models.base import Hidden, Rows
from engine.models.deepseek import DeepseekLayers
from engine.models.deepseek_weights import DeepseekLayer
from engine.models.reading import read_text
from engine.models.weights import open_weights
from engine.tensor_parallel.adapters import SentAdapters
from engine.tensor_parallel.messages import Kind, PassMessage, send
from engine.tensor_parallel.parent import LOST_GROUP
from engine.tensor_parallel.shard import Shard
from kernels.decoder import LayerWeights
from kernels.linear import LinearWeight

logger = logging.getLogger(__name__)


class LeaderWeights:
    """The weights of rank 0. `embedding` and `lm_head` are complete and read on demand."""

    def __init__(self, shard: Shard, folder: Path) -> None:
        self._shard, self._folder = shard, folder
        self._tables: dict[str, Tensor] = {}
        self.layers: tuple[LayerWeights, ...] | tuple[DeepseekLayer, ...] = shard.weights.layers
        self.lm_head_packed: LinearWeight = shard.weights.lm_head_packed

    @property
    def embedding(self) -> Tensor:
        """[V, H]"""
        return self._table("model.embed_tokens.weight")

    @property
    def lm_head(self) -> Tensor:
        """[V, H]"""
        return self.embedding if self._shard.config.tie_word_embeddings else self._table("lm_head.weight")

    def _table(self, name: str) -> Tensor:
        if name not in self._tables:
            with open_weights(self._folder) as source:
                self._tables[name] = source.tensor(name).to(self._shard.dtype, copy=True)
        return self._tables[name]


class _Caches:
    """Numbers the KV caches of rank 0. By these numbers, the other ranks create and drop their own KV caches."""

    def __init__(self) -> None:
        self._ids: weakref.WeakKeyDictionary[KVCache, int] = weakref.WeakKeyDictionary()
        self._numbers = itertools.count()
        self._dropped: list[int] = []

    def id_of(self, cache: KVCache) -> int:
        if cache not in self._ids:
            self._ids[cache] = number = next(self._numbers)
            weakref.finalize(cache, self._dropped.append, number).atexit = False
        return self._ids[cache]

    def take_dropped(self) -> list[int]:
        dropped = self._dropped[:]
        del self._dropped[: len(dropped)]
        return dropped


class ShardedModel:
    """Implements `Model` on all ranks of a group. Only one thread may call its methods.

    folder: the model's folder, from which DeepSeek's MTP module can be loaded.
    """

    def __init__(self, shard: Shard, folder: Path) -> None:
        self._shard = shard
        self.folder = folder
        self.config = replace(shard.config, num_cached_kv_heads=len(shard.cut.kv_heads))
        self.weights = LeaderWeights(shard, folder)
        self.dtype, self.device = shard.dtype, shard.device
        self._layers: Sequence[int] = range(shard.config.num_layers)
        self._caches = _Caches()
        self._adapters = SentAdapters(shard.group, shard.cut)

    def with_layers(self, indices: Sequence[int]) -> "ShardedModel":
        """Returns a model of these layers only, which shares the weights."""
        chosen = ShardedModel.__new__(ShardedModel)
        chosen.__dict__.update(self.__dict__)
        chosen._layers = tuple(indices)
        chosen.config = replace(self.config, num_layers=len(indices))
        return chosen

    @property
    def lm_head(self) -> Tensor:
        return self.weights.lm_head

    @property
    def max_positions(self) -> int:
        return self._shard.tables[0].shape[0]

    @property
    def layers(self) -> DeepseekLayers:
        """Returns an object that runs layers on rank 0 alone, for the MTP module of DeepSeek-V3."""
        return DeepseekLayers(self.config, self._shard.tables, self.dtype)

    @torch.inference_mode()
    def forward(self, rows: Rows, cache: KVCache, tap_layers: Sequence[int] = ()) -> Hidden:
        """Writes the keys and values of this rank's heads to the cache; the other ranks write theirs."""
        if not all(0 <= index <= len(self._layers) for index in tap_layers):
            raise ValueError(f"tap_layers must be in 0..{len(self._layers)}, got {list(tap_layers)}")
        rows.rows.attention.check()
        with _ending_the_rank_on_failure():
            runs = [(self._adapters.number_of(run.layers), run.first, run.count) for run in rows.lora_runs]
            message = PassMessage(
                cache_id=self._caches.id_of(cache),
                num_slots=cache.keys[0].shape[0],
                dropped_caches=self._caches.take_dropped(),
                layers=self._layers,
                tap_layers=tap_layers,
                runs=runs,
                token_ids=rows.token_ids,
                rows=rows.rows,
            )
            send(self._shard.group, Kind.PASS, message.to_vector())
            return self._shard.forward(
                rows.token_ids,
                rows.rows,
                cache,
                layers=self._layers,
                tap_layers=tap_layers,
                runs=self._adapters.runs(runs),
            )

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor:
        """Returns logits [M, V] float32. hidden: [M, H] after the final norm, in the model's dtype."""
        if hidden.shape[0] == 0:
            return torch.empty(0, self.config.vocab_size)
        hidden = hidden.contiguous()
        with _ending_the_rank_on_failure():
            send(self._shard.group, Kind.LOGITS, hidden.view(-1).view(torch.uint8))
            logits = self._shard.logits(hidden)
        assert logits is not None  # true on rank 0
        return logits

    def hidden_states(self, token_ids: Tensor, tap_layers: Sequence[int] = ()) -> Hidden:
        """Returns the T hidden states of a text, with the same bits as in serving. token_ids: [T] int64."""
        return read_text(self, token_ids, tap_layers)


@contextmanager
def _ending_the_rank_on_failure() -> Iterator[None]:
    """Ends this process if an exchange fails. The ranks are then out of step, so no later pass would be correct.

    The parent process then ends the other ranks.
    """
    try:
        yield
    except Exception:
        logger.exception("rank 0 cannot go on with a pass")
        os._exit(LOST_GROUP)
