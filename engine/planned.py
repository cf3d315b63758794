"""Fits an engine's configuration into the memory of its device, before the model is loaded (workers/planning.py)."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import torch

from engine.config import EngineConfig, read_config, resolve_device
from engine.device_memory import total_bytes
from engine.errors import ModelTooLarge
from engine.loop import MAX_DRAFT_NODES
from workers.contracts import MAX_ROWS
from workers.model_sizes import ModelSizes
from workers.planning import DoesNotFit, Wanted, plan, plan_rows
from workers.stored_weights import read_stored

_EXCLUSIVE_SHARE = 0.95  # usable share of a GPU's free memory; the allocator's fragmentation takes the rest


def fit(
    config: EngineConfig,
    model_dir: Path,
    *,
    memory_bytes: int | None = None,
    memory_share: float | None = None,
    speculator_dir: Path | None = None,
    further_speculator_dirs: Iterable[Path] = (),
    adapter_dirs: Iterable[Path] = (),
    drafter: str = "none",
    num_engines: int = 1,
) -> EngineConfig:
    """Returns the config with the size of KV cache that fits; the same config if the model's sizes are unknown.

    Args:
        memory_bytes: memory that the engine may use, all ranks together. None: on a GPU, nearly all free memory; on a
            CPU, as much as `config.kv_cache_bytes` needs.
        memory_share: memory that the engine may use, as a share of the device's memory, above 0 and at most 1.
        further_speculator_dirs: speculators of the other engines, which are loaded at the same time.
        drafter: name as in `load_drafter`. If it includes `native_mtp`, memory for the target's own module is planned.
        num_engines: number of engines with this config that share the weights.
    Raises:
        ModelNotLoadable: config.json cannot be read.
        ModelTooLarge: the message lists the bytes of each part.
        ValueError: both limits are given, or the share is out of range.
    """
    device = resolve_device(config.device)
    memory_bytes = _limit(device, memory_bytes, memory_share)
    sizes = _sizes(config, model_dir)
    if memory_bytes is None or sizes is None:
        return config
    wanted = _wanted(config, sizes, device, memory_bytes, speculator_dir, adapter_dirs, drafter, num_engines)
    further_bytes = sum(_speculator_bytes(folder, sizes, config) for folder in further_speculator_dirs)
    wanted = replace(wanted, speculator_bytes=wanted.speculator_bytes + further_bytes)
    try:
        return replace(config, kv_cache_bytes=plan(sizes, wanted).parts.kv_cache // num_engines)
    except DoesNotFit as error:
        raise ModelTooLarge(str(error)) from error


def fit_rows(
    config: EngineConfig,
    model_dir: Path,
    *,
    memory_bytes: int | None = None,
    memory_share: float | None = None,
    speculator_dir: Path | None = None,
) -> EngineConfig:
    """Like `fit`, but for a batch: `max_batch_size` becomes the number of rows that fit, up to the device's `MAX_ROWS`.

    On a CPU without a limit of memory, the rows share a KV cache of 1 GiB. Raises: as `fit`.
    """
    device = resolve_device(config.device)
    config = replace(config, max_batch_size=MAX_ROWS[device.type])
    sizes = _sizes(config, model_dir)
    if sizes is None:
        return replace(config, max_batch_size=EngineConfig().max_batch_size)
    wanted = _wanted(config, sizes, device, _limit(device, memory_bytes, memory_share), speculator_dir)
    try:
        planned = plan_rows(sizes, wanted)
    except DoesNotFit as error:
        raise ModelTooLarge(str(error)) from error
    return replace(config, max_batch_size=planned.concurrency, kv_cache_bytes=planned.parts.kv_cache)


def _limit(device: torch.device, memory_bytes: int | None, memory_share: float | None) -> int | None:
    """Returns the bytes that the engine may use; None if no limit was given for a CPU."""
    if memory_bytes is not None and memory_share is not None:
        raise ValueError("memory_share must not be given together with memory_bytes")
    if memory_share is not None:
        if not 0 < memory_share <= 1:
            raise ValueError(f"memory_share must be above 0 and at most 1, got {memory_share}")
        memory_bytes = int(memory_share * total_bytes(device))
    if memory_bytes is None and device.type == "cuda":
        memory_bytes = int(_EXCLUSIVE_SHARE * torch.cuda.mem_get_info(device)[0])
    return memory_bytes


def _sizes(config: EngineConfig, model_dir: Path) -> ModelSizes | None:
    try:
        sizes = ModelSizes.of(read_config(model_dir), read_stored(model_dir))
    except (OSError, ValueError):  # also UnknownSizes. If a file is damaged, loading the model reports what is wrong
        return None
    return sizes if config.dtype == "auto" else replace(sizes, dtype_bytes=4 if config.dtype == "float32" else 2)


def _wanted(
    config: EngineConfig,
    sizes: ModelSizes,
    device: torch.device,
    memory_bytes: int | None,
    speculator_dir: Path | None,
    adapter_dirs: Iterable[Path] = (),
    drafter: str = "none",
    num_engines: int = 1,
) -> Wanted:
    return Wanted(
        device=device.type,
        memory_bytes=None if memory_bytes is None else memory_bytes // config.tensor_parallel,
        weights=config.weights,
        context=config.max_seq_len,
        concurrency=config.max_batch_size,
        draft_nodes=MAX_DRAFT_NODES if config.draft_budget is None else config.draft_budget,
        speculator_bytes=0 if speculator_dir is None else _speculator_bytes(speculator_dir, sizes, config),
        adapter_bytes=sum(map(_weight_bytes, adapter_dirs)),
        tensor_parallel=config.tensor_parallel,
        num_engines=num_engines,
        has_mtp_module="native_mtp" in drafter.split("+"),
    )


def _speculator_bytes(folder: Path, sizes: ModelSizes, config: EngineConfig) -> int:
    """Returns the bytes of the drafter's weights.

    Most drafters use the target's whole embedding and output head. With tensor parallelism a rank has only parts of
    these tables, so they are counted in addition.
    """
    return _weight_bytes(folder) + (sizes.table_bytes if config.tensor_parallel > 1 else 0)


def _weight_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("*.safetensors"))
