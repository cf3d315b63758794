"""The names and shapes of an artifact's tensors, computed from config.json without importing the engine.

The engine's modules define the same names and shapes; a test compares the two definitions.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from workers.exports.errors import invalid
from workers.exports.folder import integer
from workers.exports.tensors import FLOATS, Stored

Shape = tuple[int, ...]
MAX_COUNT = 64  # maximum number of heads, layers, taps and draft tokens that an uploaded config.json may state
_MAX_POSITIONS = 1 << 21  # maximum length of the rotary table
_INTEGERS = frozenset({"I64"})
_BOOLEANS = frozenset({"BOOL"})


@dataclass(frozen=True, slots=True)
class TensorShapes:
    required: dict[str, Shape]
    optional: dict[str, Shape] = field(default_factory=dict)


def check_tensors(tensors: Mapping[str, Stored], wanted: TensorShapes) -> None:
    """Raises: ExchangeError: a tensor is missing or unknown, or has a wrong shape or dtype. The message names it."""
    if missing := sorted(wanted.required.keys() - tensors.keys()):
        raise invalid(f"tensor {missing[0]} is missing")
    shapes = wanted.required | wanted.optional
    for name, tensor in sorted(tensors.items()):
        if name not in shapes:
            raise invalid(f"tensor {name:.120} is not part of a speculator of this kind")
        if tensor.shape != shapes[name]:
            raise invalid(f"tensor {name} must be {list(shapes[name])}, got {list(tensor.shape)}")
        dtypes = {"d2t": _INTEGERS, "t2d": _BOOLEANS, "draft_vocab": _INTEGERS}.get(name, FLOATS)
        if tensor.dtype not in dtypes:
            raise invalid(f"tensor {name} must be one of {', '.join(sorted(dtypes))}, got {tensor.dtype}")


@dataclass(frozen=True, slots=True)
class Layer:
    """The sizes of a decoder layer and its vocabulary, read from a configuration of `transformers`."""

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
        """Returns the shapes of the layer's tensors by name. Each name begins with `prefix`.

        read_width: the input width of the query, key and value projections.
        """
        H, queries, keys = self.hidden, self.heads * self.head_dim, self.kv_heads * self.head_dim
        attention = f"{prefix}self_attn."
        shapes: dict[str, Shape] = {
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
            shapes |= {f"{attention}{name}_norm.weight": (self.head_dim,) for name in "qk"}
        if self.query_bias:
            sizes = {"q": queries, "k": keys, "v": keys}
            shapes |= {f"{attention}{name}_proj.bias": (size,) for name, size in sizes.items()}
        if self.output_bias:
            shapes[f"{attention}o_proj.bias"] = (H,)
        return shapes
