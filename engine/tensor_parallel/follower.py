"""The main loop of the ranks from 1 on. Such a rank takes part in every operation that rank 0 announces.

The loop ends when the parent process ends the rank, or when the group is lost.
"""

import logging
import os
from dataclasses import replace
from typing import NoReturn

import torch
from torch import Tensor

from engine.cache.kv_cache import KVCache
from engine.tensor_parallel.adapters import KeptAdapters
from engine.tensor_parallel.messages import Kind, PassMessage, receive
from engine.tensor_parallel.parent import LOST_GROUP
from engine.tensor_parallel.shard import Shard

logger = logging.getLogger(__name__)


def follow(shard: Shard) -> NoReturn:
    """Runs the loop. Does not return; ends the process with the status LOST_GROUP when the group is lost."""
    follower = _Follower(shard)
    while True:
        try:
            kind, content = receive(shard.group)
        # This also happens when the server is stopped: rank 0 has ended, and the parent process ends this rank next.
        except RuntimeError as error:
            logger.warning("rank %d ends without its group: %s", shard.group.rank, error)
            os._exit(LOST_GROUP)  # an exit through Python could wait for threads of the lost group
        try:
            follower.take_part(kind, content)
        except RuntimeError:
            logger.exception("rank %d has lost the group in a pass", shard.group.rank)
            os._exit(LOST_GROUP)


class _Follower:
    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        self._caches: dict[int, KVCache] = {}
        self._adapters = KeptAdapters(shard.cut)

    def take_part(self, kind: Kind, content: Tensor) -> None:
        """Executes this rank's part of the operation that a message of rank 0 announces."""
        if kind == Kind.PASS:
            self._forward(PassMessage.of_vector(content))
        elif kind == Kind.LOGITS:
            self._shard.logits(content.view(self._shard.dtype).view(-1, self._shard.config.hidden_size))
        else:
            self._adapters.add(content)

    def _forward(self, message: PassMessage) -> None:
        for number in message.dropped_caches:
            self._caches.pop(number, None)
        if message.cache_id not in self._caches:
            self._caches[message.cache_id] = self._make_cache(message)
        runs, _ = self._adapters.runs(message.runs)
        self._shard.forward(
            message.token_ids,
            message.rows,
            self._caches[message.cache_id],
            layers=message.layers,
            tap_layers=message.tap_layers,
            runs=runs,
        )

    def _make_cache(self, message: PassMessage) -> KVCache:
        """Makes the KV cache of this rank's heads. Its slot table stays empty, because messages contain the slots."""
        shard = self._shard
        return KVCache(
            replace(shard.config, num_layers=len(message.layers), num_cached_kv_heads=len(shard.cut.kv_heads)),
            num_slots=message.num_slots,
            max_sequences=1,
            max_seq_len=1,
            dtype=shard.dtype,
            device=torch.device("cpu"),
        )
