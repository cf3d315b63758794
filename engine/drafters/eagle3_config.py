"""The configuration of an EAGLE-3 drafter, which is read from and written to two public formats.

    speculators   layers.0.*   config: speculators_model_type eagle3, transformer_layer_config {...}
    specforge     midlayer.*   config: architectures LlamaForCausalLMEagle3, a Llama configuration of one layer

Here, as in vLLM and speculators, tap i of the target is the input of layer i. SpecForge and SGLang number a tap by the
layer whose output it is, which is one less. The default taps are the inputs of layers 2, L / 2 and L - 3 of a target
with L layers. If a drafter uses the default taps, its file does not list them.

Source: `speculators` (models/eagle3), vLLM's and SGLang's Llama EAGLE-3 models.
"""

from dataclasses import dataclass
from typing import Any, Literal

from transformers import LlamaConfig

Layout = Literal["speculators", "specforge"]
_OPTIONS = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")


@dataclass(frozen=True, slots=True, kw_only=True)
class Eagle3Config:
    hidden_size: int
    target_hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    draft_vocab_size: int
    norm_eps: float
    max_positions: int
    rope_parameters: dict[str, Any]  # in the format of transformers 5
    tap_layers: tuple[int, ...] | None  # None: the default, which depends on the target's number of layers
    norm_before_residual: bool = False  # the residual starts from the normalized hidden state
    norm_before_fc: bool = False  # one norm over all taps
    fc_norm: bool = False  # a norm for each tap (EAGLE-3.1)
    norm_output: bool = False  # the fed-back output is normalized (EAGLE-3.1)
    num_taps: int = 3
    prompt_tokens: bool = False  # the tokens of a request's prompt are also proposed (prompt_tokens.py)

    def __post_init__(self) -> None:
        sizes = (self.hidden_size, self.intermediate_size, self.num_heads, self.num_kv_heads, self.draft_vocab_size)
        if min(sizes) < 1 or self.head_dim % 2 or self.num_heads % self.num_kv_heads:
            raise ValueError(f"sizes must be positive, head_dim even, num_heads a multiple of num_kv_heads, got {self}")
        if self.draft_vocab_size > self.vocab_size:
            raise ValueError(f"draft_vocab_size must be at most {self.vocab_size}, got {self.draft_vocab_size}")
        if self.norm_before_fc and self.fc_norm:
            raise ValueError("norm_before_fc and fc_norm exclude each other")
        if self.tap_layers is not None and len(self.tap_layers) != self.num_taps:
            raise ValueError(f"needs {self.num_taps} tap layers, got {list(self.tap_layers)}")

    def taps_of(self, num_layers: int) -> tuple[int, ...]:
        """Returns the tap layers for a target with `num_layers` layers."""
        return self.tap_layers or default_taps(num_layers)

    @classmethod
    def from_values(cls, values: dict[str, Any]) -> "Eagle3Config":
        """`values`: config.json of either layout. Raises: ValueError, KeyError, TypeError: not an EAGLE-3 config."""
        layer = LlamaConfig(**values.get("transformer_layer_config", values))
        if layer.num_hidden_layers != 1:
            raise ValueError(f"an EAGLE-3 drafter has one layer, got {layer.num_hidden_layers}")
        if layer.attention_bias or layer.mlp_bias:
            raise ValueError("EAGLE-3 layers with biases are not supported")
        taps = _stored_taps(values)
        return cls(
            hidden_size=layer.hidden_size,
            target_hidden_size=values.get("target_hidden_size") or layer.hidden_size,
            intermediate_size=layer.intermediate_size,
            num_heads=layer.num_attention_heads,
            num_kv_heads=layer.num_key_value_heads or layer.num_attention_heads,
            head_dim=layer.head_dim or layer.hidden_size // layer.num_attention_heads,
            vocab_size=layer.vocab_size,
            draft_vocab_size=values.get("draft_vocab_size") or layer.vocab_size,
            norm_eps=layer.rms_norm_eps,
            max_positions=layer.max_position_embeddings,
            rope_parameters=dict(layer.rope_parameters or {}),
            tap_layers=taps,
            num_taps=3 if taps is None else len(taps),
            prompt_tokens=bool(values.get("prompt_tokens")),
            **{name: bool(values.get(name)) for name in _OPTIONS},
        )

    def layer_config(self) -> LlamaConfig:
        return LlamaConfig(
            hidden_size=self.hidden_size,
            intermediate_size=self.intermediate_size,
            num_attention_heads=self.num_heads,
            num_key_value_heads=self.num_kv_heads,
            head_dim=self.head_dim,
            vocab_size=self.vocab_size,
            rms_norm_eps=self.norm_eps,
            max_position_embeddings=self.max_positions,
            rope_parameters=self.rope_parameters,
            num_hidden_layers=1,
        )

    def to_values(self, layout: Layout, *, base_model: str, depth: int) -> dict[str, Any]:
        """Returns config.json of a layout. `depth`: tokens that other engines draft per pass, as a chain."""
        options = {name: getattr(self, name) for name in _OPTIONS}
        layer = {k: v for k, v in self.layer_config().to_dict().items() if not k.startswith(("_", "transformers_"))}
        if layout == "specforge":
            taps = {} if self.tap_layers is None else {"eagle_config": _specforge_taps(self.tap_layers)}
            sizes = {"draft_vocab_size": self.draft_vocab_size, "target_hidden_size": self.target_hidden_size}
            return layer | {"architectures": ["LlamaForCausalLMEagle3"]} | sizes | options | taps
        proposal = {"proposal_type": "greedy", "speculative_tokens": depth}
        return {
            "architectures": ["Eagle3Speculator"],
            "speculators_model_type": "eagle3",
            "transformer_layer_config": layer,
            "draft_vocab_size": self.draft_vocab_size,
            "target_hidden_size": self.target_hidden_size,
            "eagle_aux_hidden_state_layer_ids": None if self.tap_layers is None else list(self.tap_layers),
            "embed_requires_grad": False,
            **options,
            **({"prompt_tokens": True} if self.prompt_tokens else {}),  # not part of the layout
            "speculators_config": {
                "algorithm": "eagle3",
                "default_proposal_method": "greedy",
                "proposal_methods": [{**proposal, "verifier_accept_k": 1, "accept_tolerance": 0.0}],
                "verifier": {"name_or_path": base_model, "architectures": []},
            },
        }


def default_taps(num_layers: int) -> tuple[int, ...]:
    """Returns the default tap layers of a target with `num_layers` layers; with few layers, some are equal."""
    return (min(2, num_layers), num_layers // 2, max(0, num_layers - 3))


def _stored_taps(values: dict[str, Any]) -> tuple[int, ...] | None:
    """Returns the taps in the file, numbered by the layer whose input they are; None if the file lists none."""
    if (readers := values.get("eagle_aux_hidden_state_layer_ids")) is not None:
        return tuple(readers)
    writers = (values.get("eagle_config") or {}).get("eagle_aux_hidden_state_layer_ids")
    return None if writers is None else tuple(layer + 1 for layer in writers)


def _specforge_taps(tap_layers: tuple[int, ...]) -> dict[str, Any]:
    return {
        "eagle_aux_hidden_state_layer_ids": [layer - 1 for layer in tap_layers],
        "use_aux_hidden_state": True,
    }
