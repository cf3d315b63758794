"""Loads models, drafters and engines from folders."""

import logging
from pathlib import Path
from typing import NoReturn

import torch

from engine.config import MODEL_TYPES, EngineConfig, ModelConfig, read_config, resolve_device, resolve_dtype
from engine.draft import MAX_DEPTH
from engine.drafters.base import Drafter
from engine.drafters.combined import CombinedDrafter
from engine.drafters.draft_model import DraftModelDrafter, check_vocabularies
from engine.errors import AdapterNotLoadable, ModelNotLoadable, SpeculatorNotLoadable, WeightsNotSupported
from engine.fingerprint import fingerprint_of
from engine.kinds import KINDS, DrafterSource
from engine.loop import Engine
from engine.models.base import Model
from engine.models.deepseek import Deepseek
from engine.models.deepseek_weights import load_deepseek_weights
from engine.models.dense import Decoder
from engine.models.quantized.report import report_weights
from engine.models.quantized.source import format_of
from engine.models.rotary import rotary_tables
from engine.models.transformers_adapter import load_transformers_model
from engine.models.weights import load_weights
from engine.row_invariance import check_row_invariance
from engine.target_texts import check_target_texts
from engine.tensor_parallel.follower import follow
from engine.tensor_parallel.group import join_group
from engine.tensor_parallel.leader import ShardedModel
from engine.tensor_parallel.load import check_tensor_parallel, load_shard
from engine.tokenizer import Tokenizer
from kernels.linear import INT4_GROUP

logger = logging.getLogger(__name__)


def load_model(model_dir: Path, *, dtype: str = "auto", weights: str = "auto", device: str = "auto") -> Model:
    """Loads the target model. `weights`: as in EngineConfig.

    Raises: ModelNotLoadable: the engine does not support the model in the folder.
        WeightsNotSupported: the model or the device does not support this format of the weights.
        QuantizedCheckpoint: the weights are quantized with a method that the engine does not read.
    """
    values = read_config(model_dir)
    format_of(model_dir)  # raises if the stored format cannot be read, before anything is loaded
    if values.get("model_type") not in MODEL_TYPES:
        _refuse_format(weights)
        wanted = "bfloat16" if weights == "bf16" else dtype
        return load_transformers_model(model_dir, dtype=wanted, device=device)
    config = ModelConfig.from_folder(model_dir)
    resolved_dtype, resolved_device = resolve_dtype(dtype, config.dtype, weights=weights), resolve_device(device)
    if config.latent is not None:
        _refuse_format(weights)
        tables = rotary_tables(model_dir, config.latent.rope_dim, config.max_position_embeddings)
        latent_weights = load_deepseek_weights(model_dir, config, resolved_dtype, resolved_device)
        return Deepseek(config, latent_weights, tables, resolved_dtype, model_dir)
    if weights == "int4":
        _check_int4(config, resolved_device)
    if weights == "fp8" and resolved_device.type != "cuda":
        raise WeightsNotSupported(f"fp8 weights are for CUDA only, got a {resolved_device.type}: choose int8 or int4")
    decoder_weights = load_weights(model_dir, config, resolved_dtype, resolved_device, weights=weights)
    tables = rotary_tables(model_dir, config.head_dim, config.max_position_embeddings)
    return Decoder(config, decoder_weights, tables, resolved_dtype)


def _refuse_format(weights: str) -> None:
    if weights not in ("auto", "bf16"):
        raise WeightsNotSupported(f"{weights} weights are for Llama's family, Mixtral and Qwen3-MoE only")


def _check_int4(config: ModelConfig, device: torch.device) -> None:
    if device.type != "cpu":
        raise WeightsNotSupported("int4 weights are for CPUs only: choose weights=auto or int8")
    sizes: tuple[int, ...] = (config.hidden_size, config.intermediate_size, config.num_heads * config.head_dim)
    if config.mixture is not None:
        sizes = (*sizes, config.mixture.intermediate_size)
    if any(size % INT4_GROUP for size in sizes):
        raise WeightsNotSupported(f"int4 weights require layer sizes that are multiples of {INT4_GROUP}, got {sizes}")


def load_drafter(name: str, model: Model, speculator_dir: Path | None, *, model_dir: Path | None = None) -> Drafter:
    """Loads a drafter for the model.

    model_dir: the model's folder. If it is given, the speculator must have been trained with the folder's tokenizer and
        chat template, and a draft model must have the same vocabulary as the model.

    Raises: SpeculatorNotLoadable: the drafter is unknown, or the folder holds no such speculator for this model.
    """
    if speculator_dir is not None and model_dir is not None:
        check_target_texts(speculator_dir, model_dir)
    drafter = _load_drafter(name, model, speculator_dir, model_dir)
    if drafter.max_depth > MAX_DEPTH:
        raise SpeculatorNotLoadable(f"a speculator may draft at most {MAX_DEPTH} tokens ahead, got {drafter.max_depth}")
    return drafter


def _load_drafter(name: str, model: Model, speculator_dir: Path | None, model_dir: Path | None) -> Drafter:
    if "+" in name:
        return CombinedDrafter([load_drafter(n, model, speculator_dir, model_dir=model_dir) for n in name.split("+")])
    if name not in KINDS:
        raise SpeculatorNotLoadable(f"drafter must be one of {', '.join(KINDS)}, got {name!r}")
    return KINDS[name].load(DrafterSource(kind=name, target=model, speculator_dir=speculator_dir, target_dir=model_dir))


def load_draft_model(folder: Path, target: Model, target_dir: Path | None) -> Drafter:
    """Raises: SpeculatorNotLoadable."""
    try:
        draft = load_model(folder, dtype=str(target.dtype).removeprefix("torch."), device=str(target.device))
    except ModelNotLoadable as error:
        raise SpeculatorNotLoadable(f"the draft model can't be loaded: {error}") from error
    drafter = DraftModelDrafter(draft, target)
    if target_dir is not None:
        size = min(draft.config.vocab_size, target.config.vocab_size)
        check_vocabularies(Tokenizer.load(folder), Tokenizer.load(target_dir), size)
    return drafter


def load_engine(
    model_dir: Path,
    *,
    drafter: str = "none",
    speculator_dir: Path | None = None,
    config: EngineConfig | None = None,
) -> Engine:
    """Loads an engine, tests whether its rows are invariant on this machine, and computes its fingerprint.

    With tensor parallelism this is rank 0's part; the other ranks call `follow_engine`.

    Raises: ModelNotLoadable, SpeculatorNotLoadable.
    """
    config = config or EngineConfig()
    if config.tensor_parallel > 1:
        shard = load_shard(model_dir, config, join_group(config.tensor_parallel))
        model: Model = ShardedModel(shard, model_dir)
    else:
        model = load_model(model_dir, dtype=config.dtype, weights=config.weights, device=config.device)
    engine = Engine(model, load_drafter(drafter, model, speculator_dir, model_dir=model_dir), config)
    engine.row_invariance = check_row_invariance(model)
    engine.weights_report = report_weights(model_dir, model)
    engine.base_fingerprint = fingerprint_of(model_dir, model)
    logger.info("weights: %s, computed as %s", engine.weights_report.format, engine.weights_report.kernel)
    apply_adapter(engine, drafter, speculator_dir)
    return engine


def check_group(model_dir: Path, config: EngineConfig) -> None:
    """Checks model and config before any process of the group is started. Raises: ModelNotLoadable."""
    check_tensor_parallel(model_dir, config)
    model = ModelConfig.from_folder(model_dir)
    if model.latent is not None:
        _refuse_format(config.weights)
    if config.weights == "int4":
        _check_int4(model, resolve_device(config.device))


def follow_engine(model_dir: Path, config: EngineConfig) -> NoReturn:
    """Takes part in the passes of rank 0 until the parent process ends the group; does not return.

    Raises: ModelNotLoadable.
    """
    follow(load_shard(model_dir, config, join_group(config.tensor_parallel)))


def apply_adapter(engine: Engine, drafter: str, speculator_dir: Path | None) -> None:
    """Makes the adapter of a turbo_lora speculator the default of requests; does nothing for other drafters.

    Raises: SpeculatorNotLoadable.
    """
    if "turbo_lora" in drafter.split("+") and speculator_dir is not None:
        try:
            engine.adapters.default = engine.adapters.read("turbo_lora", speculator_dir)
        except AdapterNotLoadable as error:
            raise SpeculatorNotLoadable(str(error)) from error
