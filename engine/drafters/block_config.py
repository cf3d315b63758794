"""Reads a block drafter's config.json in any of three formats, and writes the format of the package speculators.

    speculators  has `speculators_model_type`, which is dflash or dspark; numbers a tap by the layer whose input it is
    SpecForge    has `dflash_config`; stores DFlash, DSpark and, with `causal_head`, JetSpec; numbers a tap by the layer
                 whose output it is, so that the number is one lower than in the format of speculators
    DeepSpec     has `target_layer_ids` at the top level; stores DSpark; numbers taps as SpecForge does

Values that are missing in the file get the defaults of transformers.

Source: speculators, SpecForge, DeepSpec and JetSpec. The attention settings are interpreted as in vLLM.
"""

from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from transformers import AutoConfig, PretrainedConfig

from engine.errors import SpeculatorNotLoadable

MarkovType = Literal["vanilla", "gated"]
_SLIDING = "sliding_attention"
_OWN_KEYS = {  # keys of SpecForge and DeepSpec that transformers does not know
    *("architectures", "auto_map", "dflash_config", "block_size", "mask_token_id", "num_target_layers"),
    *("target_layer_ids", "num_anchors", "markov_rank", "markov_head_type"),
    *("enable_confidence_head", "confidence_head_with_markov", "confidence_head_alpha"),
}


@dataclass(frozen=True, slots=True)
class LayerAttention:
    """The positions that a block's rows attend to in one layer.

    window: number of positions before the anchor; None: all positions.
    causal: whether a row attends only to itself and the rows before it in its block, instead of to the whole block.
    """

    window: int | None = None
    causal: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockConfig:
    """transformer: the values of the layers' configuration in config.json, with a `model_type` of transformers."""

    transformer: dict[str, Any]
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int  # size of the target's vocabulary
    norm_eps: float
    attention_bias: bool
    attention: tuple[LayerAttention, ...]  # one entry per layer
    tap_layers: tuple[int, ...]  # numbered as in Drafter.tap_layers
    block_size: int
    mask_token_id: int
    draft_vocab_size: int
    sample_from_anchor: bool = False  # every row, including the anchor's, predicts the token after its own position
    markov_rank: int = 0  # 0: no Markov head
    markov_type: MarkovType = "vanilla"
    confidence: bool = False
    confidence_with_markov: bool = False
    dtype: torch.dtype = torch.bfloat16  # dtype of the stored weights
    verifier: dict[str, Any] = field(default_factory=dict)  # speculators' description of the target

    def __post_init__(self) -> None:
        if self.max_depth < 1 or not self.attention or not self.tap_layers:
            raise ValueError("a block drafter needs a layer, a tap layer, and a row that predicts a token")
        if not 0 <= self.mask_token_id < self.vocab_size:
            raise ValueError(f"mask_token_id must be in 0..{self.vocab_size - 1}, got {self.mask_token_id}")
        if not 1 <= self.draft_vocab_size <= self.vocab_size:
            raise ValueError(f"draft_vocab_size must be in 1..{self.vocab_size}, got {self.draft_vocab_size}")
        if self.markov_type not in ("vanilla", "gated"):
            raise ValueError(f"markov_head_type must be vanilla or gated, got {self.markov_type!r}")
        if self.confidence_with_markov and not self.markov_rank:
            raise ValueError("confidence_head_with_markov needs a Markov head")

    @property
    def num_layers(self) -> int:
        return len(self.attention)

    @property
    def max_depth(self) -> int:
        return self.block_size if self.sample_from_anchor else self.block_size - 1

    @property
    def first_row(self) -> int:
        """The first row that predicts: row `first_row + d` predicts the token d + 1 positions after the anchor."""
        return 0 if self.sample_from_anchor else 1

    @classmethod
    def from_values(cls, values: dict[str, Any]) -> "BlockConfig":
        """`values`: the content of config.json. Raises: SpeculatorNotLoadable: it describes no block drafter."""
        try:
            if "speculators_model_type" in values:
                return _from_speculators(values)
            return _from_specforge(values)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise SpeculatorNotLoadable(f"config.json describes no block drafter: {error!r}") from error

    def to_values(self) -> dict[str, Any]:
        """Returns config.json of speculators: dspark if the drafter has a Markov or confidence head, else dflash."""
        dspark = bool(self.markov_rank or self.confidence)
        name = "dspark" if dspark else "dflash"
        windowed = [attention for attention in self.attention if attention.window is not None]
        values: dict[str, Any] = {
            "speculators_model_type": name,
            "architectures": ["DSparkSpeculator" if dspark else "DFlashSpeculator"],
            "transformer_layer_config": self.transformer,
            "draft_vocab_size": self.draft_vocab_size,
            "block_size": self.block_size,
            "aux_hidden_state_layer_ids": list(self.tap_layers),
            "mask_token_id": self.mask_token_id,
            "sliding_window_non_causal": bool(windowed) and not any(attention.causal for attention in windowed),
            "sample_from_anchor": self.sample_from_anchor,
            "dtype": str(self.dtype).removeprefix("torch."),
            "speculators_config": self._speculators_config(name),
        }
        if dspark:
            values |= {
                "markov_rank": self.markov_rank,
                "markov_head_type": self.markov_type,
                "enable_confidence_head": self.confidence,
                "confidence_head_with_markov": self.confidence_with_markov,
            }
        return values

    def _speculators_config(self, name: str) -> dict[str, Any]:
        method = {"proposal_type": "greedy", "speculative_tokens": self.max_depth}
        return {
            "algorithm": name,
            "default_proposal_method": "greedy",
            "proposal_methods": [method | {"verifier_accept_k": 1, "accept_tolerance": 0.0}],
            "verifier": self.verifier,
        }


def transformers_config(values: dict[str, Any]) -> PretrainedConfig:
    """Returns the config object of transformers. `values`: as `BlockConfig.transformer`."""
    rest = {key: value for key, value in values.items() if key != "model_type"}
    return AutoConfig.for_model(values.get("model_type", "qwen3"), **rest)


def _from_speculators(values: dict[str, Any]) -> BlockConfig:
    kind = values["speculators_model_type"]
    if kind not in ("dflash", "dspark"):
        raise ValueError(f"speculators_model_type must be dflash or dspark, got {kind!r}")
    transformer = values["transformer_layer_config"]
    heads = {}
    if kind == "dspark":
        heads = {
            "markov_rank": values.get("markov_rank", 256),
            "markov_type": values.get("markov_head_type", "vanilla"),
            "confidence": values.get("enable_confidence_head", True),
            "confidence_with_markov": values.get("enable_confidence_head", True)
            and values.get("confidence_head_with_markov", True),
        }
    return BlockConfig(
        **_sizes(transformer, non_causal_windows=values.get("sliding_window_non_causal", False)),
        **heads,
        tap_layers=tuple(values["aux_hidden_state_layer_ids"]),
        block_size=values["block_size"],
        mask_token_id=values["mask_token_id"],
        draft_vocab_size=values["draft_vocab_size"],
        sample_from_anchor=values.get("sample_from_anchor", kind == "dspark"),
        verifier=values.get("speculators_config", {}).get("verifier", {}),
    )


def _from_specforge(values: dict[str, Any]) -> BlockConfig:
    """Reads the formats of SpecForge and DeepSpec."""
    nested = values.get("dflash_config") or {}
    merged = values | nested  # SpecForge nests the drafter's keys in dflash_config, DeepSpec does not
    projector = nested.get("projector_type") or ("dspark" if "num_anchors" in values else "dflash")
    if projector not in ("dflash", "dspark"):
        raise ValueError(f"projector_type must be dflash or dspark, got {projector!r}")
    stored = {key: value for key, value in values.items() if key not in _OWN_KEYS}
    transformer = stored | _attention_settings(values, nested)
    sizes = _sizes(transformer, non_causal_windows=False)
    confidence = merged.get("enable_confidence_head", merged.get("confidence_head_alpha", 0.0) > 0.0)
    return BlockConfig(
        **sizes,
        tap_layers=tuple(layer + 1 for layer in merged["target_layer_ids"]),
        block_size=merged["block_size"],
        mask_token_id=merged["mask_token_id"],
        draft_vocab_size=sizes["vocab_size"],
        sample_from_anchor=projector == "dspark",  # as in DSpark's training code, although its decoding example differs
        markov_rank=merged.get("markov_rank") or 0,
        markov_type=merged.get("markov_head_type", "vanilla"),
        confidence=confidence,
        confidence_with_markov=confidence and merged.get("confidence_head_with_markov", False),
    )


def _attention_settings(values: dict[str, Any], nested: dict[str, Any]) -> dict[str, Any]:
    """Converts the attention settings of SpecForge to keys of transformers, and to vLLM's key `is_causal`."""
    converted: dict[str, Any] = {}
    causal = nested.get("causal", nested.get("causal_head"))
    if causal is not None:
        converted["is_causal"] = bool(causal)
    if nested.get("use_swa") and _SLIDING not in (values.get("layer_types") or ()):
        converted["layer_types"] = [_SLIDING] * values["num_hidden_layers"]
        converted.setdefault("is_causal", False)
    if window := nested.get("swa_window_size"):
        converted |= {"sliding_window": window, "use_sliding_window": True}
    return converted


def _sizes(transformer: dict[str, Any], *, non_causal_windows: bool) -> dict[str, Any]:
    """Returns the arguments of BlockConfig that are read in the same way from all formats."""
    config = transformers_config(transformer)
    if config.hidden_act != "silu":
        raise ValueError(f"hidden_act must be silu, got {config.hidden_act!r}")
    heads = config.num_attention_heads
    return {
        "transformer": transformer,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_heads": heads,
        "num_kv_heads": config.num_key_value_heads,
        "head_dim": getattr(config, "head_dim", None) or config.hidden_size // heads,
        "vocab_size": config.vocab_size,
        "norm_eps": config.rms_norm_eps,
        "attention_bias": getattr(config, "attention_bias", False),
        "attention": _layer_attentions(config, transformer.get("is_causal"), non_causal_windows=non_causal_windows),
    }


def _layer_attentions(
    config: PretrainedConfig, is_causal: bool | None, *, non_causal_windows: bool
) -> tuple[LayerAttention, ...]:
    """Returns the attention settings of each layer.

    is_causal: whether all layers are causal within the block. If it is None, `non_causal_windows` decides for layers
        with a sliding window, and other layers are not causal.
    """
    layers = []
    for kind in getattr(config, "layer_types", None) or ["full_attention"] * config.num_hidden_layers:
        sliding = kind == _SLIDING
        if sliding and not config.sliding_window:
            raise ValueError("sliding attention needs a window")
        causal = is_causal if is_causal is not None else sliding and not non_causal_windows
        layers.append(LayerAttention(config.sliding_window if sliding else None, causal))
    return tuple(layers)
