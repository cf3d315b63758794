"""Loads a model of `transformers` from a folder, and adapts it to the interface of engine/models/base.py.

A pass of an adapted model computes rows, one for each token, which may belong to different sequences.
"""

import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, PretrainedConfig, PreTrainedModel

from engine.config import resolve_device, resolve_dtype
from engine.errors import ModelNotLoadable, QuantizedWeightsInvalid
from engine.models.quantized.source import WeightSource, format_of
from engine.models.transformers_config import (
    context_limit,
    describe,
    num_windowed_layers,
    published_dtype,
    read_foreign_config,
)
from engine.models.transformers_model import ForeignWeights, TransformersModel
from engine.models.transformers_proof import probe_tokens, prove
from engine.models.transformers_rows import NAME, is_replaced, register, replace_products
from engine.models.weights import open_weights, unmapped
from kernels.memory import trim_heap
from workers.model_folders import QUANTIZATION_KEYS


def load_transformers_model(model_dir: Path, *, dtype: str = "auto", device: str = "auto") -> TransformersModel:
    """Loads the model. Reads only safetensors from the folder, and runs only code of transformers.

    Raises: ModelNotLoadable: the model needs a feature that is not supported; the message names it.
    """
    foreign = read_foreign_config(model_dir)
    limit = context_limit(foreign)
    resolved = resolve_dtype(dtype, published_dtype(foreign))
    try:
        model = _load(model_dir, foreign, resolved, resolve_device(device))
        embedding, lm_head = _embedding_and_head(model)
        expected, (num_kv_heads, head_dim) = _run_as_published(model, probe_tokens(embedding.shape[0], limit))
        config = describe(foreign, model_dir, num_kv_heads=num_kv_heads, head_dim=head_dim, embedding=embedding)
        register()
        replace_products(model)
        model.set_attn_implementation(NAME)
        if getattr(model.config, "_experts_implementation", None) is not None:
            model.set_experts_implementation(NAME)
        adapted = TransformersModel(model, config, ForeignWeights(embedding, lm_head), resolved)
        prove(adapted, expected)
        if not _shows_all_windows(adapted, foreign):
            limit = context_limit(foreign, within_windows=True)
            adapted.config = replace(adapted.config, max_position_embeddings=limit)
    except ModelNotLoadable as error:
        raise type(error)(f"a {foreign.model_type} is not served: {error}") from error
    except Exception as error:  # models of transformers may raise exceptions of any type
        raise ModelNotLoadable(f"a {foreign.model_type} cannot be loaded and adapted: {error!r}") from error
    return adapted


def _load(model_dir: Path, config: PretrainedConfig, dtype: torch.dtype, device: torch.device) -> PreTrainedModel:
    options: dict[str, Any] = {"use_safetensors": True, "local_files_only": True, "trust_remote_code": False}
    options |= {"dtype": dtype, "attn_implementation": "eager", "output_loading_info": True}
    quantized = format_of(model_dir) is not None
    for key in QUANTIZATION_KEYS:  # transformers must not read the weights in its own way
        config.__dict__.pop(key, None)
    model_class: Any = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    with open_weights(model_dir) as source:
        lock = threading.Lock()
        read = partial(_widened, source, dtype) if quantized else source.stored
        tensors = {name: _Unread(read, name, lock) for name in source.names()}
        model, info = model_class.from_pretrained(None, config=config, state_dict=tensors, **options)
    # For some models, AWQ stores factors of activations in extra tensors. Without these, the results would be wrong.
    if quantized and (unused := sorted(info["unexpected_keys"])):
        raise QuantizedWeightsInvalid(f"the model has no place for {len(unused)} tensors, such as {unused[0]}")
    if missing := sorted(info["missing_keys"]):
        raise ModelNotLoadable(f"{len(missing)} tensors are missing in the folder, such as {', '.join(missing[:3])}")
    _copy_out(model)
    trim_heap()
    return model.to(device).eval()  # type: ignore[no-any-return]


def _copy_out(model: PreTrainedModel) -> None:
    """Copies all parameters that are not packed later, because the pages of the files would otherwise stay mapped."""
    head = model.get_output_embeddings()
    packed = {
        parameter
        for module in model.modules()
        if module is not head and is_replaced(module)
        for parameter in module.parameters(recurse=False)
        if parameter.dim() > 1
    }
    for parameter in model.parameters():
        if parameter not in packed:
            parameter.data = unmapped(parameter.data)


class _Unread:
    """Stands in for a tensor, as a slice object of safetensors does: indexing it reads the numbers from the file.

    Several threads index such tensors at once.
    """

    def __init__(self, read: Callable[[str], Tensor], name: str, lock: threading.Lock) -> None:
        self._read, self._name, self._lock = read, name, lock

    def __getitem__(self, index: Any) -> Tensor:
        with self._lock:  # only one tensor is widened at once, which bounds the memory for intermediate results
            return self._read(self._name)[index]


def _widened(source: WeightSource, dtype: torch.dtype, name: str) -> Tensor:
    """Returns the tensor in `dtype`, in memory outside of the heap.

    On the heap, the tensor would prevent glibc from returning the memory of the intermediate results.
    """
    tensor = unmapped(source.tensor(name).to(dtype))
    trim_heap()
    return tensor


def _shows_all_windows(model: TransformersModel, config: PretrainedConfig) -> bool:
    """Returns whether the last pass received the sliding window of every layer that has one.

    Windows are received through transformers' mask interface. Some architectures apply their windows without it. If the
    configuration does not say how many layers have a window, one received window is enough.
    """
    expected = num_windowed_layers(config)
    return model.num_windowed_layers == expected if expected is not None else model.num_windowed_layers > 0


def _embedding_and_head(model: PreTrainedModel) -> tuple[Tensor, Tensor]:
    """Returns the weights of the embedding and the head, both [V, H] (vocabulary size, hidden size)."""
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    if not isinstance(embedding, nn.Embedding) or type(head) is not nn.Linear:
        raise ModelNotLoadable("embedding and head must be an nn.Embedding and an nn.Linear")
    shapes = list(embedding.weight.shape), list(head.weight.shape)
    if shapes[0] != shapes[1]:
        raise ModelNotLoadable(f"embedding and head must have the same shape, got {shapes[0]} and {shapes[1]}")
    return embedding.weight.detach(), head.weight.detach()


@torch.inference_mode()
def _run_as_published(model: PreTrainedModel, token_ids: Tensor) -> tuple[Tensor, tuple[int, int]]:
    """Runs the unchanged model on a text of T tokens.

    Returns logits [T, V] float32, and (number of key heads, head dimension).

    Raises: ModelNotLoadable: the layers' keys and values do not all have the same shape, or the model keeps none.
    """
    out = model(input_ids=token_ids.unsqueeze(0).to(model.device), use_cache=True)
    layers = getattr(out.past_key_values, "layers", ())
    # the length is left out, because transformers does not store keys that have left a sliding window
    shapes = {getattr(layer, part).shape[1::2] for layer in layers for part in ("keys", "values")}
    if len(shapes) != 1:
        raise ModelNotLoadable(f"all layers must have keys and values of one shape, got {sorted(map(list, shapes))}")
    ((num_kv_heads, head_dim),) = shapes
    return out.logits[0].float(), (num_kv_heads, head_dim)
