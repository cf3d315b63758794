"""Plans the memory of an engine on a device, from the sizes of the model. Standard library only.

The engine plans before it loads a model, and the API plans in the same way before it creates a deployment. A plan
divides the memory that the engine may use:

    weights | speculator | adapters | work space of a pass | runtime | KV cache, which takes the rest

If the rest is too small for one sequence of the wanted context, `DoesNotFit` lists the bytes of each part.

On CPUs the plans are within a tenth of the memory in use (docs/benchmarks.md, tests/benchmarks/test_memory.py).
On GPUs nothing has been measured.
"""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace

from workers.model_sizes import OUTPUT_UNIT, VOCABULARY_UNIT, LatentSizes, ModelSizes, Product, share

DEFAULT_CONCURRENCY = 16
DEFAULT_KV_BYTES = 1 << 30

_MIB = 1 << 20
_BLOCK = 32  # the CPU's kernels pad the outputs of a weight to a multiple of this number
_INT4_SIXTEENTHS = 9  # sixteenths of a byte per weight: 4 bits, and a scale of 16 bits for each group of 32
_FLOAT32_BYTES = 4
_PREFILL_ROWS = 512  # rows of a pass that prefill prompts
# Memory of an engine's process without a model, measured on Linux with torch 2.13; the value for CUDA is an estimate.
_RUNTIME_BYTES = {"cpu": 520 * _MIB, "cuda": 1024 * _MIB}
_GRAPH_BYTES = {"cpu": 0, "cuda": 512 * _MIB}  # bytes for captured graphs; an estimate


_ROW_TOKENS = 2048  # tokens that a plan reserves for each row of a batch, unless the context is shorter


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The requirements for which an engine's memory is planned.

    device: `cpu` or `cuda`.
    memory_bytes: memory of the device that the engine may use; None: the KV cache gets `DEFAULT_KV_BYTES`.
    weights: `auto`, `bf16`, `int8`, `int4` or `fp8`, as the engine's option.
    context: tokens of the longest prompt and answer together; None: as many as the model and the memory allow.
    concurrency: maximum number of sequences that decode at once.
    draft_nodes: maximum number of draft nodes per sequence.
    speculator_bytes: size of the speculator's weights in bytes.
    drafter_slot_bytes: bytes of the drafter's keys and values per position.
    adapter_bytes: size of the LoRA adapters' weights.
    tensor_parallel: number of ranks. The plan is for rank 0, and `memory_bytes` is the memory of one rank.
    num_engines: number of engines that share the weights; each has a KV cache and a work space.
    has_mtp_module: whether DeepSeek's MTP module is the drafter. It is planned as a part of the speculator.
    """

    device: str
    memory_bytes: int | None
    weights: str = "auto"
    context: int | None = None
    concurrency: int = DEFAULT_CONCURRENCY
    draft_nodes: int = 32
    speculator_bytes: int = 0
    drafter_slot_bytes: int = 0
    adapter_bytes: int = 0
    tensor_parallel: int = 1
    num_engines: int = 1
    has_mtp_module: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """Bytes of each part of the memory."""

    weights: int
    speculator: int
    adapters: int
    work_space: int
    runtime: int
    kv_cache: int

    @property
    def total(self) -> int:
        return sum(asdict(self).values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    parts: Parts
    kv_slots: int  # positions in the KV cache, of all sequences together
    context: int
    concurrency: int

    def num_sequences(self, length: int) -> int:
        """Returns the number of sequences of `length` tokens that can decode at once."""
        return min(self.concurrency, self.kv_slots // length)


@dataclass(frozen=True, slots=True, kw_only=True)
class FineTuningParts:
    """Bytes that the training of a LoRA adapter needs at least; activations come on top."""

    weights: int  # the frozen model in float32
    adapter: int  # the adapter's weights, their gradients and the optimizer's two moments, all in float32
    runtime: int

    @property
    def total(self) -> int:
        return sum(asdict(self).values())


class DoesNotFit(Exception):
    """The model does not fit into the memory. The message lists the size of each part.

    parts: the memory that is needed, with a KV cache for one sequence.
    """

    def __init__(self, parts: Parts, *, memory_bytes: int, context: int) -> None:
        listed = ", ".join(f"{name.replace('_', ' ')} {value / 1e9:.2f} GB" for name, value in asdict(parts).items())
        super().__init__(
            f"one sequence of {context:,} tokens needs {parts.total / 1e9:.2f} GB, "
            f"but the engine may use {memory_bytes / 1e9:.2f} GB ({listed})"
        )
        self.parts = parts


def plan(sizes: ModelSizes, wanted: Wanted) -> Plan:
    """Plans the memory of an engine.

    Raises: DoesNotFit: one sequence of the wanted context does not fit or, if no context is wanted, one token.
    """
    longest = min(wanted.context or sizes.max_positions, sizes.max_positions)
    if wanted.weights == "bf16":
        sizes = replace(sizes, dtype_bytes=2)
    slot_bytes = wanted.num_engines * kv_slot_bytes(sizes, wanted.tensor_parallel) + wanted.drafter_slot_bytes
    speculator_bytes = wanted.speculator_bytes
    if wanted.has_mtp_module and sizes.latent is not None:
        slot_bytes += _latent_bytes(sizes, sizes.latent)
        speculator_bytes += mtp_bytes(sizes, wanted.device)
    least_slots = (longest if wanted.context else 1) + wanted.draft_nodes
    usable_slots = wanted.concurrency * (longest + wanted.draft_nodes)
    fixed = Parts(
        weights=weight_bytes(sizes, wanted.weights, device=wanted.device, tensor_parallel=wanted.tensor_parallel),
        speculator=speculator_bytes,
        adapters=wanted.adapter_bytes,
        work_space=wanted.num_engines * _work_space(sizes, wanted.concurrency, wanted.draft_nodes, longest),
        runtime=_RUNTIME_BYTES[wanted.device] + _GRAPH_BYTES[wanted.device],
        kv_cache=0,
    )
    kv_bytes = DEFAULT_KV_BYTES if wanted.memory_bytes is None else wanted.memory_bytes - fixed.total
    slots = min(usable_slots, kv_bytes // slot_bytes)
    if slots < least_slots:
        needed = Parts(**{**asdict(fixed), "kv_cache": least_slots * slot_bytes})
        raise DoesNotFit(needed, memory_bytes=fixed.total + kv_bytes, context=least_slots - wanted.draft_nodes)
    return Plan(
        parts=Parts(**{**asdict(fixed), "kv_cache": slots * slot_bytes}),
        kv_slots=slots,
        context=min(longest, slots - wanted.draft_nodes),
        concurrency=wanted.concurrency,
    )


def plan_rows(sizes: ModelSizes, wanted: Wanted) -> Plan:
    """Returns the plan for the largest number of rows that fits, at most `wanted.concurrency`.

    The KV cache of the plan holds 2,048 tokens of each row, or each row's whole context if the context is shorter.
    """
    best = plan(sizes, replace(wanted, concurrency=1))
    row_tokens = min(_ROW_TOKENS, best.context)
    least, most = 1, wanted.concurrency
    while least < most:
        middle = (least + most + 1) // 2
        try:
            found = plan(sizes, replace(wanted, concurrency=middle))
        except DoesNotFit:
            most = middle - 1
            continue
        if found.num_sequences(row_tokens) < middle:
            most = middle - 1
        else:
            least, best = middle, found
    return best


def fine_tuning_parts(sizes: ModelSizes, *, rank: int, device: str) -> FineTuningParts:
    """Plans the training of an adapter on all linear layers of a dense decoder (workers/training/lora/labels.py)."""
    wide = replace(sizes, dtype_bytes=_FLOAT32_BYTES, kept_format=None)
    hidden, inner = sizes.hidden_size, sizes.intermediate_size
    queries, keys = sizes.num_heads * sizes.head_dim, sizes.num_kv_heads * sizes.head_dim
    # queries and the output projection; keys and values; gate, up and down
    layer = rank * (2 * (hidden + queries) + 2 * (hidden + keys) + 3 * (hidden + inner))
    return FineTuningParts(
        weights=weight_bytes(wide, "auto", device="cuda"),  # transformers packs no weights, also on the CPU
        adapter=4 * _FLOAT32_BYTES * sizes.num_layers * layer,
        runtime=_RUNTIME_BYTES[device],
    )


def kv_slot_bytes(sizes: ModelSizes, tensor_parallel: int = 1) -> int:
    """Returns the bytes of one position's keys and values in all layers, on rank 0."""
    if sizes.latent is not None:
        return sizes.num_layers * _latent_bytes(sizes, sizes.latent)
    return 2 * sizes.num_layers * -(-sizes.num_kv_heads // tensor_parallel) * sizes.head_dim * sizes.dtype_bytes


def weight_bytes(sizes: ModelSizes, weights: str, *, device: str, tensor_parallel: int = 1) -> int:
    """Returns the bytes of the weights in the format in which the engine keeps them, on rank 0, which has the most.

    Biases and norms are left out for models that the engine computes with its own layers.
    tensor_parallel: number of ranks.
    """
    is_packed = device == "cpu"  # packing copies a weight; CUDA kernels use a weight in the model's dtype as it is
    if sizes.num_parameters is not None:  # models of transformers
        head_copy = sizes.vocab_size * sizes.hidden_size if is_packed else 0
        return (sizes.num_parameters + head_copy) * sizes.dtype_bytes
    is_widened = weights in ("auto", "bf16")
    stored = sizes.kept_format if weights == "auto" and _is_kept(sizes.kept_format, device) else weights
    layers = _products_bytes(sizes, sizes.products(tensor_parallel), stored or weights, device)
    head_rows = len(share(sizes.vocab_size, VOCABULARY_UNIT, 0, tensor_parallel))
    head = Product(head_rows, sizes.hidden_size, 1)
    head_copy = _products_bytes(sizes, [head], "auto" if is_widened else "int8", device)
    if is_widened and not is_packed:
        head_copy = 0
    tables = sizes.table_bytes
    if tensor_parallel > 1:  # each rank keeps some columns of the embedding, and no unpacked LM head
        columns = len(share(sizes.hidden_size, OUTPUT_UNIT, 0, tensor_parallel))
        tables = sizes.vocab_size * columns * sizes.dtype_bytes
    return layers + tables + head_copy


def mtp_bytes(sizes: ModelSizes, device: str) -> int:
    """Returns the bytes of DeepSeek's MTP module, which is on rank 0 only; 0 for models of other types."""
    return 0 if sizes.latent is None else _products_bytes(sizes, sizes.mtp_products(), "auto", device)


def _latent_bytes(sizes: ModelSizes, latent: LatentSizes) -> int:
    """Returns the bytes of a position in one layer's KV cache."""
    return (latent.rank + latent.rope_dim) * sizes.dtype_bytes


def _is_kept(stored: str | None, device: str) -> bool:
    return stored == "int8" or (stored, device) in (("int4", "cpu"), ("fp8", "cuda"))


def _products_bytes(sizes: ModelSizes, products: Iterable[Product], stored: str, device: str) -> int:
    """Returns the bytes of the weights of the products.

    stored: `int8`, `int4` or `fp8`; any other value means the model's dtype. Routers are never stored in these formats.
    """
    return sum(_product_bytes(sizes, product, stored, device) * product.num_weights for product in products)


def _product_bytes(sizes: ModelSizes, product: Product, stored: str, device: str) -> int:
    outputs = -(-product.outputs // _BLOCK) * _BLOCK if device == "cpu" else product.outputs
    if product.is_router:
        return outputs * product.inputs * (_FLOAT32_BYTES if sizes.latent is not None else sizes.dtype_bytes)
    match stored:
        case "int8" | "fp8":
            return outputs * product.inputs + 4 * product.outputs
        case "int4":
            return outputs * product.inputs * _INT4_SIXTEENTHS // 16 + 4 * product.outputs
        case _:
            return outputs * product.inputs * sizes.dtype_bytes


def _work_space(sizes: ModelSizes, concurrency: int, draft_nodes: int, context: int) -> int:
    """Returns the bytes of a pass's activations and logits in float32, of the slot tables, and of the rotary tables."""
    decoding_rows = concurrency * (1 + draft_nodes)
    inner, experts, latent = sizes.intermediate_size, sizes.experts, sizes.latent
    if experts is not None:
        mixed = (experts.num_chosen + experts.num_shared) * experts.intermediate_size
        inner = max(mixed, inner if experts.num_dense_layers else 0)
    heads = 0 if latent is None else 2 * sizes.num_heads * (latent.rank + latent.rope_dim)  # queries and their results
    activations = (_PREFILL_ROWS + decoding_rows) * (4 * sizes.hidden_size + 3 * inner + heads) * 4
    logits = decoding_rows * sizes.vocab_size * 4
    tables = concurrency * context * 4 + sizes.max_positions * sizes.head_dim * 4
    return activations + logits + tables
