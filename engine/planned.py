"""Fits an engine's configuration into the memory of its device, before the model is loaded (workers/planning.py)."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import torch

from engine.config import EngineConfig, read_config, resolve_device
from engine.errors import ModelTooLarge
from engine.loop import MAX_DRAFT_NODES
from workers.planning import DoesNotFit, ModelSizes, UnknownSizes, Wanted, plan

_EXCLUSIVE_SHARE = 0.95  # of the free memory of a GPU; the allocator's fragmentation takes the rest


def fit(
    config: EngineConfig,
    model_dir: Path,
    *,
    memory_bytes: int | None,
    speculator_dir: Path | None = None,
    adapter_dirs: Iterable[Path] = (),
) -> EngineConfig:
    """Returns the config with the KV cache that fits. A model of unknown sizes leaves it as it is.

    Args:
        memory_bytes: memory that the engine may use, all ranks together; None: nearly all that is free on a GPU, and
            on a CPU as much as `config.kv_cache_bytes` needs.
    Raises: ModelNotLoadable: config.json cannot be read; ModelTooLarge.
    """
    device = resolve_device(config.device)
    if memory_bytes is None and device.type == "cuda":
        memory_bytes = int(_EXCLUSIVE_SHARE * torch.cuda.mem_get_info(device)[0])
    if memory_bytes is None:
        return config
    try:
        sizes = ModelSizes.of(read_config(model_dir))
    except UnknownSizes:
        return config
    if config.dtype != "auto":
        sizes = replace(sizes, dtype_bytes=4 if config.dtype == "float32" else 2)
    wanted = Wanted(
        device=device.type,
        memory_bytes=memory_bytes // config.tensor_parallel,
        weights=config.weights,
        context=config.max_seq_len,
        concurrency=config.max_batch_size,
        draft_nodes=MAX_DRAFT_NODES if config.draft_budget is None else config.draft_budget,
        speculator_bytes=0 if speculator_dir is None else _speculator_bytes(speculator_dir, sizes, config),
        adapter_bytes=sum(map(_weight_bytes, adapter_dirs)),
        tensor_parallel=config.tensor_parallel,
    )
    try:
        return replace(config, kv_cache_bytes=plan(sizes, wanted).parts.kv_cache)
    except DoesNotFit as error:
        raise ModelTooLarge(str(error)) from error


def _speculator_bytes(folder: Path, sizes: ModelSizes, config: EngineConfig) -> int:
    """Includes the target's tables, of which a rank has parts only, because most speculators share them."""
    return _weight_bytes(folder) + (sizes.table_bytes if config.tensor_parallel > 1 else 0)


def _weight_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("*.safetensors"))
