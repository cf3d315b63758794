"""Plans the memory of an engine on a device, from the model's config.json. Standard library only.

The engine plans before it loads a model, and the API plans before it creates a deployment, so both answer alike. A plan
divides the memory that the engine may use:

    weights | speculator | adapters | work space of a pass | runtime | KV cache, which takes the rest

If the rest is too small for one sequence of the wanted context, `DoesNotFit` lists the bytes of each part.

On CPUs the plans of bfloat16, int8 and int4 weights are at most 5 % larger than the memory in use (docs/benchmarks.md).
On GPUs nothing has been measured.

Letters: V vocabulary size, H hidden size, D elements per attention head.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Self

DEFAULT_CONCURRENCY = 16
DEFAULT_KV_BYTES = 1 << 30

_MIB = 1 << 20
# Tensor parallelism cuts outputs at multiples of 16, the widest vector of kernels/cpu/rows.c, and the vocabulary at
# multiples of 64, a tile of the LM head on CUDA.
OUTPUT_UNIT = 16
VOCABULARY_UNIT = 64
_BLOCK = 32  # the CPU's kernels pad the outputs of a weight to a multiple of this number
_MODEL_TYPES = frozenset({"llama", "mistral", "qwen2", "qwen3"})  # the models of engine/models/dense.py
_INT4_SIXTEENTHS = 9  # of a byte per weight: 4 bits, and a scale of 16 bits for each group of 32
_PREFILL_ROWS = 512  # rows of a pass that read prompts
# A process of the engine without a model: measured on Linux with torch 2.13. The value for CUDA is an estimate.
_RUNTIME_BYTES = {"cpu": 520 * _MIB, "cuda": 1024 * _MIB}
_GRAPH_BYTES = {"cpu": 0, "cuda": 512 * _MIB}  # an estimate


_ROW_TOKENS = 2048  # a row of a batch is planned with so many tokens, unless the context is shorter


class UnknownSizes(ValueError):
    """The memory of the model does not follow from its config.json."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSizes:
    """Sizes of a dense decoder of Llama's family."""

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
    has_float8_layers: bool = False  # all weights of the layers are stored as float8 with a scale per output

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Self:
        """`config`: config.json. Raises: UnknownSizes."""
        if config.get("model_type") not in _MODEL_TYPES:
            raise UnknownSizes(f"the memory of a model of type {config.get('model_type')!r} cannot be planned")
        num_heads, hidden_size = _size(config, "num_attention_heads"), _size(config, "hidden_size")
        max_positions = _size(config, "max_position_embeddings")
        if config.get("model_type") == "mistral" or config.get("use_sliding_window"):
            max_positions = min(max_positions, config.get("sliding_window") or max_positions)
        return cls(
            vocab_size=_size(config, "vocab_size"),
            hidden_size=hidden_size,
            intermediate_size=_size(config, "intermediate_size"),
            num_layers=_size(config, "num_hidden_layers"),
            num_heads=num_heads,
            num_kv_heads=config.get("num_key_value_heads") or num_heads,
            head_dim=config.get("head_dim") or hidden_size // num_heads,
            max_positions=max_positions,
            has_tied_head=bool(config.get("tie_word_embeddings", False)),
            dtype_bytes=4 if (config.get("dtype") or config.get("torch_dtype")) == "float32" else 2,
            has_float8_layers=_has_float8_layers(config),
        )

    @property
    def table_bytes(self) -> int:
        """Bytes of the embedding and of an unpacked LM head, which is the same tensor if the head is tied."""
        return (1 if self.has_tied_head else 2) * self.vocab_size * self.hidden_size * self.dtype_bytes

    def linears(self, tensor_parallel: int = 1) -> tuple[tuple[int, int], ...]:
        """(outputs, inputs) of the four weights of a layer, as rank 0 fuses them."""
        own_kv_heads = -(-self.num_kv_heads // tensor_parallel)
        own_heads = own_kv_heads * self.num_heads // self.num_kv_heads // max(1, tensor_parallel // self.num_kv_heads)
        hidden = len(share(self.hidden_size, OUTPUT_UNIT, 0, tensor_parallel))
        intermediate = len(share(self.intermediate_size, OUTPUT_UNIT, 0, tensor_parallel))
        return (
            ((own_heads + 2 * own_kv_heads) * self.head_dim, self.hidden_size),
            (hidden, self.num_heads * self.head_dim),
            (2 * intermediate, self.hidden_size),
            (hidden, self.intermediate_size),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What an engine is to do.

    device: `cpu` or `cuda`.
    memory_bytes: memory of the device that the engine may use; None: the KV cache gets `DEFAULT_KV_BYTES`.
    weights: `auto`, `bf16`, `int8`, `int4` or `fp8`, as the engine's option.
    context: tokens of the longest prompt and answer together; None: as long as the model allows and as fits.
    concurrency: maximum number of sequences that decode at once.
    draft_nodes: maximum number of draft nodes per sequence.
    speculator_bytes: size of the speculator's weights.
    drafter_slot_bytes: memory that the drafter's keys and values take per position.
    tensor_parallel: number of ranks. The plan is that of rank 0, and `memory_bytes` is the memory of one rank.
    num_engines: number of engines that share the weights; each has a KV cache and a work space.
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
        """The number of sequences with `length` tokens that decode at once."""
        return min(self.concurrency, self.kv_slots // length)


class DoesNotFit(Exception):
    """The message lists the bytes of each part; `parts.kv_cache` is what one sequence needs."""

    def __init__(self, parts: Parts, *, memory_bytes: int, context: int) -> None:
        listed = ", ".join(f"{name.replace('_', ' ')} {value / 1e9:.2f} GB" for name, value in asdict(parts).items())
        super().__init__(
            f"one sequence of {context:,} tokens needs {parts.total / 1e9:.2f} GB, "
            f"but the engine may use {memory_bytes / 1e9:.2f} GB ({listed})"
        )
        self.parts = parts


def share(size: int, unit: int, rank: int, degree: int) -> range:
    """Returns the part of `size` outputs that `rank` of `degree` ranks computes.

    Units of `unit` outputs are divided evenly. The first ranks get one more if some are left over, so rank 0 always has
    the most.
    """
    each, left = divmod(-(-size // unit), degree)
    first = rank * each + min(rank, left)
    return range(min(size, first * unit), min(size, (first + each + (rank < left)) * unit))


def plan(sizes: ModelSizes, wanted: Wanted) -> Plan:
    """Raises: DoesNotFit: not even one sequence of the wanted context fits; without a wanted context: not one token."""
    longest = min(wanted.context or sizes.max_positions, sizes.max_positions)
    if wanted.weights == "bf16":
        sizes = replace(sizes, dtype_bytes=2)
    slot_bytes = wanted.num_engines * kv_slot_bytes(sizes, wanted.tensor_parallel) + wanted.drafter_slot_bytes
    least_slots = (longest if wanted.context else 1) + wanted.draft_nodes
    usable_slots = wanted.concurrency * (longest + wanted.draft_nodes)
    fixed = Parts(
        weights=weight_bytes(sizes, wanted.weights, device=wanted.device, tensor_parallel=wanted.tensor_parallel),
        speculator=wanted.speculator_bytes,
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
    """Returns the plan with the most rows, at most `wanted.concurrency`, whose KV cache holds 2,048 tokens of each.

    Of models with a shorter context it holds the whole context of each row. Raises: DoesNotFit: not even one row fits.
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


def kv_slot_bytes(sizes: ModelSizes, tensor_parallel: int = 1) -> int:
    """Bytes of the keys and values of one position in all layers, on rank 0."""
    return 2 * sizes.num_layers * -(-sizes.num_kv_heads // tensor_parallel) * sizes.head_dim * sizes.dtype_bytes


def weight_bytes(sizes: ModelSizes, weights: str, *, device: str, tensor_parallel: int = 1) -> int:
    """Bytes of the weights as `engine/models/weights.py` keeps them; biases and norms are left out.

    tensor_parallel: number of ranks; the result is then the bytes of rank 0, which has the most.

    With `auto`, layers in float8 stay so on CUDA. Other quantized checkpoints are planned like the model in its dtype:
    whether int8 and int4 stay small depends on the values, which the kernels may not represent.
    """
    stays_float8 = weights == "auto" and device == "cuda" and sizes.has_float8_layers
    is_packed = device == "cpu"  # a packed weight is a copy; on CUDA a weight in the model's dtype stays as it is

    def linear(outputs: int, inputs: int, stored: str) -> int:
        outputs = -(-outputs // _BLOCK) * _BLOCK if is_packed else outputs
        match stored:
            case "int8" | "fp8":
                return outputs * inputs + 4 * outputs
            case "int4":
                return outputs * inputs * _INT4_SIXTEENTHS // 16 + 4 * outputs
            case _:
                return outputs * inputs * sizes.dtype_bytes

    layer = sum(linear(*shape, "fp8" if stays_float8 else weights) for shape in sizes.linears(tensor_parallel))
    head_rows = len(share(sizes.vocab_size, VOCABULARY_UNIT, 0, tensor_parallel))
    is_widened = weights in ("auto", "bf16")
    head_copy = linear(head_rows, sizes.hidden_size, "auto" if is_widened else "int8")
    if is_widened and not is_packed:
        head_copy = 0
    tables = sizes.table_bytes
    if tensor_parallel > 1:  # the ranks keep columns of the embedding, and no unpacked head
        columns = len(share(sizes.hidden_size, OUTPUT_UNIT, 0, tensor_parallel))
        tables = sizes.vocab_size * columns * sizes.dtype_bytes
    return sizes.num_layers * layer + tables + head_copy


def _work_space(sizes: ModelSizes, concurrency: int, draft_nodes: int, context: int) -> int:
    """Bytes of a pass's activations and logits in float32, of the slot tables, and of the rotary tables."""
    decoding_rows = concurrency * (1 + draft_nodes)
    activations = (_PREFILL_ROWS + decoding_rows) * (4 * sizes.hidden_size + 3 * sizes.intermediate_size) * 4
    logits = decoding_rows * sizes.vocab_size * 4
    tables = concurrency * context * 4 + sizes.max_positions * sizes.head_dim * 4
    return activations + logits + tables


def _has_float8_layers(config: Mapping[str, Any]) -> bool:
    """Returns whether compressed-tensors stored every linear weight but the head in float8 with a scale per output."""
    described = config.get("quantization_config")
    if not isinstance(described, Mapping) or described.get("quant_method") != "compressed-tensors":
        return False
    groups, ignored = described.get("config_groups"), described.get("ignore") or []
    if not isinstance(groups, Mapping) or len(groups) != 1 or ignored not in ([], ["lm_head"]):
        return False
    (group,) = groups.values()
    if not isinstance(group, Mapping) or group.get("targets") != ["Linear"]:
        return False
    weights = group.get("weights")
    wanted = {"type": "float", "num_bits": 8, "strategy": "channel"}
    return isinstance(weights, Mapping) and all(weights.get(key) == value for key, value in wanted.items())


def _size(config: Mapping[str, Any], name: str) -> int:
    value = config.get(name)
    if type(value) is not int or value < 1:
        raise UnknownSizes(f"config.json must have a positive whole number {name}, got {value!r}")
    return value
