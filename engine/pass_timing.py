"""Measures forward passes without graph decoding, for the cost model (engine/cost.py)."""

import time

import torch

from engine.cache.kv_cache import KVCache
from engine.cache.slots import SlotPool
from engine.cost import CostModel
from engine.models.base import Model
from engine.rows import RowBuilder


def measure_passes(model: Model, cache: KVCache, pool: SlotPool) -> CostModel:
    """Returns a cost model measured from forward passes, including the logits, over rows with empty contexts.

    Effects: writes to free slots of the cache.
    """
    return CostModel.measure(lambda num_rows: _time_pass(model, cache, pool, num_rows))


@torch.inference_mode()
def _time_pass(model: Model, cache: KVCache, pool: SlotPool, num_rows: int) -> float:
    builder = RowBuilder(cache)
    slots = pool.allocate(min(num_rows, pool.num_available))
    for slot in slots:
        builder.add_row(token=0, position=0, slot=slot, table_row=0, prefix_len=0, path=(slot,))
    rows, _ = builder.build()
    started = time.perf_counter()
    model.logits(model.forward(rows, cache).final)
    pool.free(slots)
    return time.perf_counter() - started
