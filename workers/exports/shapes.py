"""Which tensors a speculator of each kind is made of, read off its config.json alone.

Names are those of the artifact; `check` holds a folder to them. The modules of the engine are the truth, a test
compares the two.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from workers.exports.errors import invalid
from workers.exports.folder import integer
from workers.exports.tensors import FLOATS, Stored

Shape = tuple[int, ...]
MOST = 64  # heads, layers, tokens drafted: what a configuration counts is built, so it is bounded first
_MAX_POSITIONS = 1 << 21  # a table of angles is as long
_IDS = frozenset({"I64"})
_MARKS = frozenset({"BOOL"})


@dataclass(frozen=True, slots=True)
class Tensors:
    required: dict[str, Shape]
    optional: dict[str, Shape] = field(default_factory=dict)


def check(tensors: Mapping[str, Stored], wanted: Tensors) -> None:
    """Raises: ExchangeError: naming the first tensor that is missing, unknown, or of another shape or dtype."""
    if missing := sorted(wanted.required.keys() - tensors.keys()):
        raise invalid(f"tensor {missing[0]} is missing")
    known = wanted.required | wanted.optional
    for name, tensor in sorted(tensors.items()):
        if name not in known:
            raise invalid(f"tensor {name:.120} belongs to no speculator of this kind")
        if tensor.shape != known[name]:
            raise invalid(f"tensor {name} must be {list(known[name])}, got {list(tensor.shape)}")
        dtypes = {"d2t": _IDS, "t2d": _MARKS, "draft_vocab": _IDS}.get(name, FLOATS)
        if tensor.dtype not in dtypes:
            raise invalid(f"tensor {name} must be one of {', '.join(sorted(dtypes))}, got {tensor.dtype}")


@dataclass(frozen=True, slots=True)
class Layer:
    """A decoder layer's sizes, as `transformers` names them."""

    hidden: int
    inner: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    head_norms: bool
    query_bias: bool
    output_bias: bool

    @classmethod
    def read(cls, values: Mapping[str, Any]) -> "Layer":
        """Raises: ExchangeError."""
        kind = values.get("model_type", "llama")
        if kind not in ("llama", "qwen2", "qwen3"):
            raise invalid(f"config.json: a layer's model_type must be llama, qwen2 or qwen3, got {kind!r:.40}")
        hidden, heads = integer(values, "hidden_size"), integer(values, "num_attention_heads")
        bias = bool(values.get("attention_bias"))
        integer(values, "max_position_embeddings", 2048, most=_MAX_POSITIONS)
        dim = 128 if kind == "qwen3" else hidden // heads
        return cls(
            hidden=hidden,
            inner=integer(values, "intermediate_size"),
            heads=heads,
            kv_heads=integer(values, "num_key_value_heads", heads),
            head_dim=dim if values.get("head_dim") is None else integer(values, "head_dim"),
            vocab=integer(values, "vocab_size"),
            head_norms=kind == "qwen3",
            query_bias=bias or kind == "qwen2",
            output_bias=bias,
        )

    def shapes(self, prefix: str, *, read_width: int) -> dict[str, Shape]:
        """read_width: of what query, key and value read."""
        H, queries, keys = self.hidden, self.heads * self.head_dim, self.kv_heads * self.head_dim
        attention = f"{prefix}self_attn."
        found: dict[str, Shape] = {
            f"{attention}q_proj.weight": (queries, read_width),
            f"{attention}k_proj.weight": (keys, read_width),
            f"{attention}v_proj.weight": (keys, read_width),
            f"{attention}o_proj.weight": (H, queries),
            f"{prefix}mlp.gate_proj.weight": (self.inner, H),
            f"{prefix}mlp.up_proj.weight": (self.inner, H),
            f"{prefix}mlp.down_proj.weight": (H, self.inner),
            f"{prefix}input_layernorm.weight": (H,),
            f"{prefix}post_attention_layernorm.weight": (H,),
        }
        if self.head_norms:
            found |= {f"{attention}{name}_norm.weight": (self.head_dim,) for name in "qk"}
        if self.query_bias:
            sizes = {"q": queries, "k": keys, "v": keys}
            found |= {f"{attention}{name}_proj.bias": (size,) for name, size in sizes.items()}
        if self.output_bias:
            found[f"{attention}o_proj.bias"] = (H,)
        return found


def eagle3_tensors(config: Mapping[str, Any]) -> Tensors:
    """`config`: as the artifact's."""
    values = config.get("transformer_layer_config", config)
    layer = Layer.read({**values, "model_type": "llama"})
    if layer.query_bias or values.get("mlp_bias"):
        raise invalid("EAGLE-3 layers with biases are not served")
    H, drafted = layer.hidden, integer(config, "draft_vocab_size", layer.vocab)
    target = H if config.get("target_hidden_size") is None else integer(config, "target_hidden_size")
    taps = config.get("eagle_aux_hidden_state_layer_ids") or [0, 0, 0]
    if not isinstance(taps, list) or len(taps) > MOST:
        raise invalid(f"tapped layers must be a list of at most {MOST}, got {taps!r:.80}")
    required = layer.shapes("layers.0.", read_width=2 * H) | {
        "layers.0.hidden_norm.weight": (H,),
        "fc.weight": (H, len(taps) * target),
        "norm.weight": (H,),
        "lm_head.weight": (drafted, H),
    }
    if config.get("norm_before_fc"):
        required["input_norm.weight"] = (len(taps) * target,)
    if config.get("fc_norm"):
        required |= {f"fc_norm.{tap}.weight": (target,) for tap in range(len(taps))}
    if drafted < layer.vocab:
        required["d2t"] = (drafted,)
    return Tensors(required, {"embed_tokens.weight": (layer.vocab, H), "d2t": (drafted,), "t2d": (layer.vocab,)})


def block_tensors(config: Mapping[str, Any]) -> Tensors:
    """`config`: as `speculators` writes DFlash and DSpark."""
    values = config["transformer_layer_config"]
    layer, num_layers = Layer.read({"model_type": "qwen3", **values}), integer(values, "num_hidden_layers", most=MOST)
    if not layer.head_norms:
        raise invalid("a block drafter's layers must be Qwen3's")
    H, drafted = layer.hidden, integer(config, "draft_vocab_size", layer.vocab)
    taps = config.get("aux_hidden_state_layer_ids")
    if not isinstance(taps, list) or len(taps) > MOST:
        raise invalid(f"tapped layers must be a list of at most {MOST}, got {taps!r:.80}")
    required = {"fc.weight": (H, len(taps) * H), "hidden_norm.weight": (H,), "norm.weight": (H,)}
    for index in range(num_layers):
        required |= layer.shapes(f"layers.{index}.", read_width=H)
    if config.get("speculators_model_type") == "dspark":
        required |= _dspark_heads(config, layer, drafted)
    if drafted < layer.vocab:
        required["d2t"] = (drafted,)
    optional: dict[str, Shape] = {"embed_tokens.weight": (layer.vocab, H), "lm_head.weight": (drafted, H)}
    return Tensors(required, optional | {"d2t": (drafted,), "t2d": (layer.vocab,)})


def _dspark_heads(config: Mapping[str, Any], layer: Layer, drafted: int) -> dict[str, Shape]:
    rank = integer(config, "markov_rank", 256, least=0)
    found: dict[str, Shape] = {}
    if rank:
        found |= {
            "markov_head.markov_w1.weight": (layer.vocab, rank),
            "markov_head.markov_w2.weight": (drafted, rank),
        }
    if rank and config.get("markov_head_type") == "gated":
        found |= {
            "markov_head.gate_proj.weight": (rank, layer.hidden + rank),
            "markov_head.gate_proj.bias": (rank,),
        }
    if config.get("enable_confidence_head", True):
        width = layer.hidden + rank * bool(config.get("confidence_head_with_markov", True))
        found |= {"confidence_head.proj.weight": (1, width), "confidence_head.proj.bias": (1,)}
    return found


def mtp_tensors(config: Mapping[str, Any]) -> Tensors:
    """`config`: as `speculators` writes it."""
    values = config["transformer_layer_config"]
    layer, prefix = Layer.read(values), "mtp_layers.0."
    H, inner = layer.hidden, layer.inner
    required = layer.shapes(prefix, read_width=H) | {f"{prefix}input_proj.weight": (H, 2 * H)}
    required |= {f"{prefix}{name}_layernorm.weight": (H,) for name in ("token", "hidden", "final")}
    if values.get("mlp_bias"):
        sizes = {"gate": inner, "up": inner, "down": H}
        required |= {f"{prefix}mlp.{name}_proj.bias": (size,) for name, size in sizes.items()}
    return Tensors(required)


def medusa_tensors(config: Mapping[str, Any]) -> Tensors:
    """`config`: the section `slipstream` of the artifact's; names with the draft vocabulary's."""
    H, drafted = integer(config, "hidden_size"), integer(config, "draft_vocab_size")
    layers = integer(config, "num_layers", most=MOST)
    required: dict[str, Shape] = {"draft_vocab": (drafted,)}
    for head in range(integer(config, "num_heads", most=MOST)):
        for number in range(layers):
            required |= {f"{head}.{number}.linear.weight": (H, H), f"{head}.{number}.linear.bias": (H,)}
        if config.get("token_input"):
            required[f"{head}.0.token.weight"] = (H, H)
        if not config.get("tied", True):
            required[f"{head}.{layers}.weight"] = (drafted, H)
    return Tensors(required)
