"""Measures forward passes without graph decoding, for the cost model (engine/cost.py)."""

import time

import torch

from engine.cache.kv_cache import KVCache
from engine.cost import ROW_COUNTS, CostModel
from engine.models.base import Model
from engine.rows import RowBuilder


def measure_passes(model: Model) -> CostModel:
    """Returns a cost model measured from forward passes, including the logits, over rows with empty contexts.

    The passes have a small cache of their own, so they need no free slots of the engine's cache.
    """
    cache = KVCache(
        model.config,
        num_slots=max(ROW_COUNTS),
        max_sequences=1,
        max_seq_len=1,
        dtype=model.dtype,
        device=model.device,
    )
    return CostModel.measure(lambda num_rows: _time_pass(model, cache, num_rows))


@torch.inference_mode()
def _time_pass(model: Model, cache: KVCache, num_rows: int) -> float:
    builder = RowBuilder(cache)
    for slot in range(num_rows):
        builder.add_row(token=0, position=0, slot=slot, table_row=0, prefix_len=0, path=(slot,))
    rows, _ = builder.build()
    started = time.perf_counter()
    model.logits(model.forward(rows, cache).final)
    return time.perf_counter() - started
