"""Decides the size of the KV cache: as many slots as fit into its memory, but no more than a full batch can use."""

from engine.cache.kv_cache import KVCache
from engine.config import EngineConfig
from engine.draft import MAX_DEPTH
from engine.errors import KvDtypeNotSupported
from engine.models.base import Model

_SPARE_POSITIONS = MAX_DEPTH  # graph decoding may write this far past the end of an answer before the host stops it


def make_cache(
    model: Model,
    config: EngineConfig,
    *,
    max_seq_len: int,
    max_draft_nodes: int,
    drafter_slot_bytes: int,
    graph_decoding: bool,
) -> KVCache:
    """Allocates the KV cache of an engine.

    Args:
        max_draft_nodes: maximum number of draft nodes per sequence in one step.
        drafter_slot_bytes: memory that the drafter's own keys and values take for each slot.

    Raises: KvDtypeNotSupported.
    """
    dtype = str(model.dtype).removeprefix("torch.").replace("bfloat16", "bf16")
    if config.kv_dtype not in ("auto", dtype):
        message = f"attention reads a KV cache in the model's dtype only, which is {dtype}"
        raise KvDtypeNotSupported(f"{message}: kv_dtype must be auto or {dtype}, got {config.kv_dtype!r}")
    # Graph decoding launches a graph step before it has read the previous one, so a sequence uses the slots of two
    # steps at once: in each step, one for the last token and one for each draft node.
    draft_slots = 2 * (1 + max_draft_nodes) if graph_decoding else max_draft_nodes
    usable_slots = config.max_batch_size * (max_seq_len + draft_slots)
    slot_bytes = KVCache.slot_bytes(model.config, model.dtype) + drafter_slot_bytes
    return KVCache(
        model.config,
        num_slots=max(1, min(usable_slots, config.kv_cache_bytes // slot_bytes)),
        max_sequences=config.max_batch_size + graph_decoding,
        max_seq_len=max_seq_len + _SPARE_POSITIONS * graph_decoding,
        dtype=model.dtype,
        device=model.device,
        num_padding_slots=int(graph_decoding),
    )
