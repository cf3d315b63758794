"""The sizes of a model from which the memory of an engine is planned (workers/planning.py). Standard library only.

If the engine has its own layers for a model, config.json gives all sizes. The other models run through transformers;
their weights are counted in their files (workers/stored_weights.py).

H is the hidden size.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

from workers.stored_weights import StoredTensor, kept_format, num_parameters

# Tensor parallelism cuts outputs at multiples of 16, the widest vector of kernels/cpu/rows.c, and the vocabulary at
# multiples of 64, a tile of the LM head on CUDA.
OUTPUT_UNIT = 16
VOCABULARY_UNIT = 64
_DENSE_TYPES = frozenset({"llama", "mistral", "qwen2", "qwen3"})  # the models of engine/models/dense.py
_MIXTURE_TYPES = frozenset({"mixtral", "qwen3_moe"})
_OTHER_NAMES = {  # names of the same sizes in configurations like that of GPT-2
    "hidden_size": "n_embd",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "max_position_embeddings": "n_positions",
}


class UnknownSizes(ValueError):
    """The memory that a model needs cannot be computed from its config.json and its files."""


class Product(NamedTuple):
    """Matrix products with `num_weights` different weights, which all have the shape [outputs, inputs]."""

    outputs: int
    inputs: int
    num_weights: int
    is_router: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertSizes:
    """Sizes of a mixture of experts."""

    num_experts: int
    num_chosen: int  # experts per token
    intermediate_size: int  # of one expert
    num_dense_layers: int  # layers that have a dense MLP instead
    num_shared: int = 0  # experts that every token uses; they are computed as one expert


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentSizes:
    """Sizes of DeepSeek's latent attention."""

    query_rank: int | None  # None: one matrix computes the queries from the hidden state
    rank: int
    nope_dim: int
    rope_dim: int
    value_dim: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSizes:
    """Sizes of a decoder.

    kept_format: `int8`, `int4` or `fp8`, if the files store the weights of all layers in this format and the engine can
        keep it; None: the engine converts quantized weights to the model's dtype.
    num_parameters: number of parameters of a model that runs through transformers; None: the engine has its own layers
        for the model.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_positions: int
    has_tied_head: bool
    dtype_bytes: int  # bytes of an element in the model's dtype
    kept_format: str | None = None
    experts: ExpertSizes | None = None
    latent: LatentSizes | None = None
    num_parameters: int | None = None

    @classmethod
    def of(cls, config: Mapping[str, Any], stored: Mapping[str, StoredTensor] | None = None) -> Self:
        """Reads the sizes from a model's configuration and files.

        Args:
            config: config.json.
            stored: the tensors of the model's files. None: quantized weights are planned in the model's dtype, and
                models that run through transformers cannot be planned.
        Raises: UnknownSizes: the message names what is missing.
        """
        model_type = config.get("model_type")
        is_own = model_type in (*_DENSE_TYPES, *_MIXTURE_TYPES, "deepseek_v3")
        if not is_own and stored is None:
            raise UnknownSizes(f"the memory of a model of type {model_type!r} cannot be planned without its files")
        num_heads, hidden_size = _size(config, "num_attention_heads"), _size(config, "hidden_size")
        latent = _latent(config) if model_type == "deepseek_v3" else None
        experts = _experts(config) if model_type in _MIXTURE_TYPES or latent is not None else None
        inner = _size(config, "intermediate_size") if is_own else _inner_size(config, hidden_size)
        return cls(
            vocab_size=_size(config, "vocab_size"),
            hidden_size=hidden_size,
            intermediate_size=inner,
            num_layers=_size(config, "num_hidden_layers"),
            num_heads=num_heads,
            num_kv_heads=num_heads if latent else config.get("num_key_value_heads") or num_heads,
            head_dim=latent.nope_dim + latent.rope_dim
            if latent
            else config.get("head_dim") or hidden_size // num_heads,
            max_positions=_max_positions(config),
            has_tied_head=bool(config.get("tie_word_embeddings", False)),
            dtype_bytes=4 if (config.get("dtype") or config.get("torch_dtype")) == "float32" else 2,
            kept_format=None if stored is None or latent or not is_own else kept_format(config, stored),
            experts=experts,
            latent=latent,
            num_parameters=None if is_own or stored is None else num_parameters(config, stored),
        )

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Reads a result of `dataclasses.asdict`, also one that an earlier release has stored."""
        others = dict(values)
        experts, latent = others.pop("experts", None), others.pop("latent", None)
        if others.pop("has_float8_layers", False):
            others["kept_format"] = "fp8"
        return cls(
            **others,
            experts=None if experts is None else ExpertSizes(**experts),
            latent=None if latent is None else LatentSizes(**latent),
        )

    @property
    def has_weight_formats(self) -> bool:
        """Whether the engine can quantize the weights."""
        return self.latent is None and self.num_parameters is None

    @property
    def table_bytes(self) -> int:
        """The bytes of the embedding and of an unpacked LM head. A tied head is the same tensor as the embedding."""
        return (1 if self.has_tied_head else 2) * self.vocab_size * self.hidden_size * self.dtype_bytes

    @property
    def group_sizes(self) -> tuple[int, ...]:
        """The input sizes that occur among the layers' products. int4 quantization divides these inputs into groups."""
        return tuple(sorted({product.inputs for product in self.products() if not product.is_router}))

    def products(self, tensor_parallel: int = 1) -> tuple[Product, ...]:
        """Returns the products of all layers on rank 0, with fused projections. The engine must have its own layers for
        the model."""
        count = self.num_layers if self.experts is None else self.experts.num_dense_layers
        mixed = self.num_layers - count
        return (
            *self._attention(self.num_layers, tensor_parallel),
            *self._mlp(self.intermediate_size, count, tensor_parallel),
            *self._mixture(mixed, tensor_parallel),
        )

    def mtp_products(self) -> tuple[Product, ...]:
        """Returns the products of DeepSeek's MTP module: a layer, and a matrix before it. Tensor parallelism does not
        divide this module."""
        merge = Product(self.hidden_size, 2 * self.hidden_size, 1)
        return (*self._attention(1, 1), *self._mixture(1, 1), merge)

    def _attention(self, count: int, degree: int) -> Iterator[Product]:
        H = self.hidden_size
        own_kv_heads = -(-self.num_kv_heads // degree)
        own_heads = own_kv_heads * self.num_heads // self.num_kv_heads // max(1, degree // self.num_kv_heads)
        hidden = len(share(H, OUTPUT_UNIT, 0, degree))
        if self.latent is None:
            yield Product((own_heads + 2 * own_kv_heads) * self.head_dim, H, count)
            yield Product(hidden, self.num_heads * self.head_dim, count)
            return
        latent = self.latent
        if latent.query_rank:
            yield Product(latent.query_rank, H, count)
        yield Product(own_heads * self.head_dim, latent.query_rank or H, count)
        yield Product(latent.rank + latent.rope_dim, H, count)
        yield Product(latent.rank, latent.nope_dim, count * own_heads)
        yield Product(latent.value_dim, latent.rank, count * own_heads)
        yield Product(hidden, self.num_heads * latent.value_dim, count)

    def _mlp(self, width: int, count: int, degree: int) -> Iterator[Product]:
        if count and width:
            yield Product(2 * len(share(width, OUTPUT_UNIT, 0, degree)), self.hidden_size, count)
            yield Product(len(share(self.hidden_size, OUTPUT_UNIT, 0, degree)), width, count)

    def _mixture(self, count: int, degree: int) -> Iterator[Product]:
        if count and self.experts is not None:
            experts = self.experts
            yield Product(experts.num_experts, self.hidden_size, count, is_router=True)
            yield from self._mlp(experts.intermediate_size, count * experts.num_experts, degree)
            yield from self._mlp(experts.intermediate_size * experts.num_shared, count, degree)


def share(size: int, unit: int, rank: int, degree: int) -> range:
    """Returns the part of `size` outputs that `rank` of `degree` ranks computes.

    The outputs are divided in units of `unit` outputs. If the number of units is no multiple of `degree`, the first
    ranks get one unit more, so rank 0 always has the most.
    """
    each, left = divmod(-(-size // unit), degree)
    first = rank * each + min(rank, left)
    return range(min(size, first * unit), min(size, (first + each + (rank < left)) * unit))


def _max_positions(config: Mapping[str, Any]) -> int:
    """Returns the longest context in tokens: the sliding window, if a model of the engine's own types has one."""
    longest = _size(config, "max_position_embeddings")
    if config.get("model_type") in ("mistral", "mixtral") or config.get("use_sliding_window"):
        return min(longest, config.get("sliding_window") or longest)
    return longest


def _experts(config: Mapping[str, Any]) -> ExpertSizes:
    layers = range(_size(config, "num_hidden_layers"))
    if config["model_type"] == "deepseek_v3":
        return ExpertSizes(
            num_experts=_size(config, "n_routed_experts"),
            num_chosen=_size(config, "num_experts_per_tok"),
            intermediate_size=_size(config, "moe_intermediate_size"),
            num_dense_layers=min(len(layers), config.get("first_k_dense_replace") or 0),
            num_shared=_size(config, "n_shared_experts"),
        )
    step, dense = config.get("decoder_sparse_step", 1), config.get("mlp_only_layers") or ()
    return ExpertSizes(
        num_experts=_size(config, "num_experts" if "num_experts" in config else "num_local_experts"),
        num_chosen=_size(config, "num_experts_per_tok"),
        intermediate_size=_size(
            config, "intermediate_size" if config["model_type"] == "mixtral" else "moe_intermediate_size"
        ),
        num_dense_layers=sum(layer in dense or bool((layer + 1) % step) for layer in layers),
    )


def _latent(config: Mapping[str, Any]) -> LatentSizes:
    return LatentSizes(
        query_rank=config.get("q_lora_rank"),
        rank=_size(config, "kv_lora_rank"),
        nope_dim=_size(config, "qk_nope_head_dim"),
        rope_dim=_size(config, "qk_rope_head_dim"),
        value_dim=_size(config, "v_head_dim"),
    )


def _inner_size(config: Mapping[str, Any], hidden_size: int) -> int:
    """Returns the number of activations per token in the widest MLP of a model that runs through transformers."""
    names = ("intermediate_size", "num_experts_per_tok", "moe_intermediate_size")
    dense, num_chosen, expert = (value if type(value := config.get(name)) is int else 0 for name in names)
    dense = dense or 4 * hidden_size
    return max(dense, num_chosen * (expert or dense))


def _size(config: Mapping[str, Any], name: str) -> int:
    value = config.get(name, config.get(_OTHER_NAMES.get(name, name)))
    if type(value) is not int or value < 1:
        raise UnknownSizes(f"config.json must have a positive whole number {name}, got {value!r}")
    return value
