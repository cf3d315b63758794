"""Runs causal models of `transformers` that have no decoder in this package. They are slower but equally exact.

There is no list of accepted model families. A model is served only if it passes tests on a short text, for example that
its logits equal those of transformers and that a row's bits do not depend on other rows
(engine/models/transformers_proof.py).
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPastAndCrossAttentions

from engine.cache.kv_cache import KVCache
from engine.config import ModelConfig
from engine.errors import ModelNotLoadable
from engine.models.base import Hidden, Rows
from engine.models.reading import read_text
from engine.models.transformers_rows import CURRENT, RowLinear, RowPass, RowProducts, padded_rows


@dataclass(frozen=True, slots=True)
class ForeignWeights:
    embedding: Tensor  # [V, H]
    lm_head: Tensor  # [V, H]


@dataclass
class _States(BaseModelOutputWithPastAndCrossAttentions):
    """The decoder outputs that language model heads read."""

    router_logits: Tensor | None = None


class _PassThrough(nn.Module):
    """Replaces the decoder in the copy of the model that computes logits, and returns its input as hidden states."""

    def forward(self, *_: Any, inputs_embeds: Tensor, **__: Any) -> _States:
        return _States(last_hidden_state=inputs_embeds)


class TransformersModel:
    """Implements `Model` with a model of transformers.

    model: its attention and linear layers have been replaced (engine/models/transformers_rows.py).
    linears: for each layer, the (outputs, inputs) of the modules that can have LoRA updates, by name.
    """

    def __init__(
        self, model: PreTrainedModel, config: ModelConfig, weights: ForeignWeights, dtype: torch.dtype
    ) -> None:
        self.config = config
        self.weights = weights
        self.dtype = dtype
        self.device = weights.embedding.device
        self.num_windowed_layers = 0  # layers that used a sliding window in the last pass
        self._decoder = model.get_decoder()
        self._head = _without_decoder(model, self._decoder)
        layers = _layers(self._decoder, config)
        _add_taps(layers)
        self.linears = [_place_linears(layer, index, dtype) for index, layer in enumerate(layers)]

    @property
    def lm_head(self) -> Tensor:
        return self.weights.lm_head

    @property
    def max_positions(self) -> int:
        return self.config.max_position_embeddings

    @torch.inference_mode()
    def forward(self, rows: Rows, cache: KVCache, tap_layers: Sequence[int] = ()) -> Hidden:
        """Raises: ValueError: an index in `tap_layers` is not in 0..num_layers."""
        if not all(0 <= index <= self.config.num_layers for index in tap_layers):
            raise ValueError(f"tap_layers must be in 0..{self.config.num_layers}, got {list(tap_layers)}")
        M = rows.token_ids.shape[0]
        num_padding = padded_rows(M) - M
        token_ids, position_ids = (
            nn.functional.pad(ids, (0, num_padding)).unsqueeze(0) for ids in (rows.token_ids, rows.rows.positions)
        )
        current = RowPass(rows.rows, cache.keys, cache.values, frozenset(tap_layers), rows.lora_runs)
        token = CURRENT.set(current)
        try:
            with RowProducts(M):
                out = self._decoder(input_ids=token_ids, position_ids=position_ids, use_cache=False)
        finally:
            CURRENT.reset(token)
        if current.num_layers != self.config.num_layers:
            found = f"got {current.num_layers} of {self.config.num_layers}"
            raise ModelNotLoadable(f"all layers must use transformers' attention interface, {found}")
        self.num_windowed_layers = current.num_windowed
        taps = [current.taps[index].to(self.dtype) for index in tap_layers]
        return Hidden(out[0][0, :M].to(self.dtype), torch.stack(taps, dim=1) if taps else None)

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor:
        M = hidden.shape[0]
        padded = nn.functional.pad(hidden, (0, 0, 0, padded_rows(M) - M))
        with RowProducts(M):
            out = self._head(inputs_embeds=padded.unsqueeze(0), use_cache=False)
        return out.logits[0, :M].float().contiguous()  # type: ignore[no-any-return]

    def hidden_states(self, token_ids: Tensor, tap_layers: Sequence[int] = ()) -> Hidden:
        return read_text(self, token_ids, tap_layers)


def _without_decoder(model: PreTrainedModel, decoder: nn.Module) -> nn.Module:
    """Returns a copy of `model` that shares all modules, except that `_PassThrough` replaces the decoder."""
    (path,) = (name for name, module in model.named_modules() if module is decoder)
    top = node = _shallow_copy(model)
    *parents, last = path.split(".")
    for name in parents:
        node._modules[name] = child = _shallow_copy(node.get_submodule(name))
        node = child
    node._modules[last] = _PassThrough()
    return top


def _shallow_copy(module: nn.Module) -> nn.Module:
    twin = copy.copy(module)
    twin._modules = dict(module._modules)
    return twin


def _layers(decoder: nn.Module, config: ModelConfig) -> nn.ModuleList:
    """Returns the decoder's list of layers. Raises: ModelNotLoadable: none is found."""
    lists = (module for module in decoder.modules() if isinstance(module, nn.ModuleList))
    layers = next((modules for modules in lists if len(modules) == config.num_layers), None)
    if layers is None:
        raise ModelNotLoadable(f"a {config.model_type} has no list of {config.num_layers} layers")
    return layers


def _place_linears(layer: nn.Module, index: int, dtype: torch.dtype) -> dict[str, tuple[int, int]]:
    """Sets `place` in the linear modules of attention and MLP. Returns their (outputs, inputs) by name."""
    shapes = {}
    for block in ("self_attn", "mlp"):
        for name, module in getattr(layer, block, nn.Module()).named_children():
            if isinstance(module, RowLinear) and module.input_dtype == dtype:
                module.place = (index, name)
                shapes[name] = (module.out_features, module.in_features)
    return shapes


def _add_taps(layers: nn.ModuleList) -> None:
    """Adds hooks that record the taps (engine/models/base.py)."""

    def record_tap(index: int, hidden: Tensor) -> None:
        current = CURRENT.get()
        if current is not None and index in current.tap_layers:
            current.taps[index] = hidden[0, : current.num_rows].clone()

    for index, layer in enumerate(layers):

        def before(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], index: int = index) -> None:
            record_tap(index, args[0] if args else kwargs["hidden_states"])

        layer.register_forward_pre_hook(before, with_kwargs=True)

    def after(_: nn.Module, __: tuple[Any, ...], out: Tensor | tuple[Tensor, ...]) -> None:
        record_tap(len(layers), out if isinstance(out, Tensor) else out[0])

    layers[-1].register_forward_hook(after)
