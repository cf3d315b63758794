"""Loads one rank's part of a model."""

from pathlib import Path

import torch

from engine.config import EngineConfig, ModelConfig, read_config, resolve_device, resolve_dtype
from engine.errors import TensorParallelOnCuda, TensorParallelUnsupported
from engine.models.deepseek_weights import DeepseekReader
from engine.models.rotary import rotary_tables
from engine.models.weights import HEAD_PACKS, DecoderReader, open_weights, trimmed
from engine.tensor_parallel.cut import Cut
from engine.tensor_parallel.group import Group
from engine.tensor_parallel.shard import Shard, ShardWeights
from kernels.attention import has_compiled_attention
from kernels.cpu.library import library
from kernels.memory import trim_heap

_MODEL_TYPES = ("llama", "mistral", "qwen2", "qwen3", "mixtral", "qwen3_moe", "deepseek_v3")
# the compiled kernel for experts needs a multiple of this number, and only that kernel gives the same bits in parts
_EXPERT_UNIT = 32


def check_tensor_parallel(model_dir: Path, config: EngineConfig) -> None:
    """Checks the model and the device before any process of the group is started.

    Raises: TensorParallelOnCuda, TensorParallelUnsupported; ModelNotLoadable: config.json cannot be read.
    """
    if resolve_device(config.device).type == "cuda":
        raise TensorParallelOnCuda(
            "--tensor-parallel has never been run on GPUs, so it is refused there: use --device cpu, or one GPU"
        )
    model_type = read_config(model_dir).get("model_type")
    if model_type not in _MODEL_TYPES:
        raise TensorParallelUnsupported(
            f"--tensor-parallel serves models of the types {', '.join(_MODEL_TYPES)}, got {model_type!r}"
        )
    model = ModelConfig.from_folder(model_dir)
    layout, experts = model.cache_layout, model.mixture or model.experts
    if library() is None or not has_compiled_attention(model.num_heads, layout.num_heads, layout.key_width):
        raise TensorParallelUnsupported(
            "--tensor-parallel needs the compiled CPU kernels, whose bits do not depend on how outputs are cut: "
            "install a C compiler; heads must have a multiple of 16 elements"
        )
    if experts is not None and experts.intermediate_size % _EXPERT_UNIT:
        raise TensorParallelUnsupported(
            f"--tensor-parallel needs experts with a multiple of {_EXPERT_UNIT} activations, "
            f"got {experts.intermediate_size}"
        )
    Cut(model, 0, config.tensor_parallel)


def load_shard(model_dir: Path, config: EngineConfig, group: Group) -> Shard:
    """Loads the part of the model that belongs to the rank of `group`. Raises: ModelNotLoadable."""
    model = ModelConfig.from_folder(model_dir)
    cut = Cut(model, group.rank, group.degree)
    dtype = resolve_dtype(config.dtype, model.dtype)
    weights = _load_weights(model_dir, model, cut, dtype, config.weights)
    rotary_dim = model.head_dim if model.latent is None else model.latent.rope_dim
    tables = rotary_tables(model_dir, rotary_dim, model.max_position_embeddings)
    return Shard(model, weights, tables, dtype, cut, group)


def _load_weights(model_dir: Path, config: ModelConfig, cut: Cut, dtype: torch.dtype, weights: str) -> ShardWeights:
    hidden, vocabulary = (slice(part.start, part.stop) for part in (cut.hidden, cut.vocabulary))
    with open_weights(model_dir) as source:
        reader: DecoderReader | DeepseekReader
        if config.latent is None:
            reader = DecoderReader(source, config, dtype, torch.device("cpu"), weights, cut.outputs)
            norm = "model.norm.weight"
        else:
            reader = DeepseekReader(source, config, dtype, torch.device("cpu"), cut.outputs)
            norm = "model.norm"  # this reader appends ".weight"
        size = (config.vocab_size, config.hidden_size)
        table = reader.tensor("model.embed_tokens.weight", *size)
        head = table if config.tie_word_embeddings else reader.tensor("lm_head.weight", *size)
        loaded = ShardWeights(
            embedding=table[:, hidden].contiguous(),
            layers=tuple(map(reader.layer, trimmed(config.num_layers))),  # type: ignore[arg-type]
            final_norm=reader.norm(norm, config.hidden_size),
            lm_head_packed=HEAD_PACKS[weights](head[vocabulary]),
        )
    trim_heap()
    return loaded
