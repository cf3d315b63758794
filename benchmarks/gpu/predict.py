"""Predicts T_plain and T_verify(n) on an H100, from counts of compiled kernels and published figures of the GPU.

    python -m benchmarks.gpu.predict

Nothing is measured, and no GPU is needed. The prediction is to be compared with the first measurement
(`python -m benchmarks.decode`); where they differ, one of the assumptions below is wrong. benchmarks/gpu/steps.py
defines T_plain and T_verify(n). The formula for a step of one sequence with M rows is

    T = launches x launch_seconds + sum of all products + sum of the attention of all layers
    product    max(W / copy, (W x programs per weight block + X) / l2, K-steps x cycles / clock) + 2 outputs / l2
    attention  max(KV / copy, KV read by all programs / l2) + 2 splits / l2

copy, l2, clock, launch_seconds    figures of the GPU, see `Gpu`
launches    launches of all layers, counted by benchmarks/gpu/compiled.py, plus launches of the step outside the layers
W, X        bytes of the weight, and bytes of the rows, which the programs of each block of outputs read again; a block
            has 64 outputs, or twice as many if the kernel also computes SwiGLU
K-steps     iterations of the loop over the summed dimension K, on the SM (multiprocessor) with the most programs
cycles      of a K-step, the larger of two numbers: its instructions, because an SM issues one per cycle to each of its
            four warps; and the cycles to read the operands of its matrix products from shared memory
outputs     bytes of a product's partial sums, which one kernel writes and the next one reads
splits      bytes of the attention's partial results, one for each split of the keys, which are also written and read
KV          bytes of the keys and values of the context

Kernels are assumed to run one after the other without overlap, and to reach the bandwidths while they run. The time to
fill and drain the pipeline of a kernel is not included, so short kernels probably take longer than predicted.
"""

import sys
from dataclasses import dataclass

import triton

from benchmarks.gpu.compiled import LayerLaunches, k_step, measure
from benchmarks.gpu.shapes import SHAPES, pass_bytes
from engine.config import ModelConfig
from kernels.cuda.attention import num_splits as attention_splits
from kernels.cuda.linear import BLOCK_N, ROW_TILE, num_splits

MODELS = ("llama-3.1-8b", "llama-3.2-1b")
CONTEXT = 2048
# Launches of a step without a drafter outside of the layers: 30 operations and kernels in the program that a test
# captures in float32 (tests/engine/graph_decoding/captured.py), and in bfloat16 a conversion of the embeddings.
STEP_LAUNCHES = 31
_BLOCK_K, _MAX_TILES = 64, 8  # as in kernels/cuda/linear.py
_ITEMSIZE, _FLOAT = 2, 4
_TAIL_KEYS = 96  # mean number of keys that each row reads on its own (kernels/cuda/attention.py)
_PAIRS = 64  # pairs of a row and a head that share a block of keys
_MATRIX_BYTES = (64 + ROW_TILE) * 16 * _ITEMSIZE  # operands of m64n16k16


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """Figures of a GPU. copy, l2: bandwidths of a copy and of the L2 cache, in bytes per second."""

    copy: float
    l2: float
    launch_seconds: float  # from the end of a kernel to the start of the next one in a graph
    num_sms: int
    clock: float  # Hz
    shared_bytes: int  # per cycle and SM


# launch_seconds: Spector et al. 2025, "Look Ma, No Bubbles!", for graphs on an H100. num_sms and shared_bytes: NVIDIA's
# description of the H100 SXM. Assumptions: copy is 90 % of the data sheet's 3.35 TB/s, clock is the boost clock of the
# PCIe version, and l2 is uncertain by a factor of about 2.
H100 = Gpu(copy=3.0e12, l2=5.5e12, launch_seconds=1.3e-6, num_sms=132, clock=1.755e9, shared_bytes=128)


@dataclass(frozen=True, slots=True)
class KStep:
    """Counts of an iteration of the loop over K."""

    instructions: int
    products: int

    def cycles(self, gpu: Gpu) -> float:
        return max(self.instructions, self.products * _MATRIX_BYTES / gpu.shared_bytes)


@dataclass(frozen=True, slots=True)
class Counts:
    """Counts from the compiled kernels of a layer with M rows."""

    M: int
    launches: int
    step: KStep
    gated: KStep | None = None  # of the kernel that computes gate_up and SwiGLU; None: two kernels compute them

    @classmethod
    def of(cls, layer: LayerLaunches) -> "Counts":
        steps: dict[str, tuple[int, int]] = {}
        for launch in layer.launches:
            name = launch.kernel.name
            steps[name] = max(steps.get(name, (0, 0)), k_step(launch.kernel))
        gated = steps.get("_swiglu_product_kernel")
        return cls(layer.M, len(layer.launches), KStep(*steps["_product_kernel"]), gated and KStep(*gated))


@dataclass(frozen=True, slots=True)
class Bounds:
    """Lower bounds of a product's time, in seconds."""

    copy: float
    l2: float
    cycles: float

    @property
    def longest(self) -> float:
        return max(self.copy, self.l2, self.cycles)


def product_bounds(gpu: Gpu, M: int, step: KStep, N: int, K: int, *, splits: int, block: int = BLOCK_N) -> Bounds:
    """Returns the bounds of a product of M rows with a weight [N, K]. `block`: outputs per program."""
    tiles = min(_MAX_TILES, triton.next_power_of_2(-(-M // ROW_TILE)))
    row_groups, blocks = -(-M // (ROW_TILE * tiles)), -(-N // block)
    steps = -(-K // (splits * _BLOCK_K))  # of a program
    weight_bytes = N * K * _ITEMSIZE
    read_bytes = weight_bytes * row_groups + blocks * M * K * _ITEMSIZE
    steps_of_busiest = -(-row_groups * blocks * splits // gpu.num_sms) * steps
    cycles = steps_of_busiest * step.cycles(gpu)
    return Bounds(weight_bytes / gpu.copy, read_bytes / gpu.l2, cycles / gpu.clock)


def layer_product_seconds(gpu: Gpu, counts: Counts, N: int, K: int) -> float:
    """Predicts the time of a layer's product, with the writing and reading of its sums."""
    splits = num_splits(N, K)
    bounds = product_bounds(gpu, counts.M, counts.step, N, K, splits=splits)
    return bounds.longest + 2 * splits * counts.M * N * _FLOAT / gpu.l2


def gate_up_bounds(gpu: Gpu, counts: Counts, N: int, K: int) -> Bounds:
    if counts.gated is None:
        return product_bounds(gpu, counts.M, counts.step, N, K, splits=num_splits(N, K))
    return product_bounds(gpu, counts.M, counts.gated, N, K, splits=1, block=2 * BLOCK_N)


def gate_up_seconds(gpu: Gpu, counts: Counts, N: int, K: int) -> float:
    """Predicts the time of the product with gate_up [N, K], with the writing and reading of its output."""
    if counts.gated is None:
        return layer_product_seconds(gpu, counts, N, K)
    return gate_up_bounds(gpu, counts, N, K).longest + 2 * counts.M * N // 2 * _ITEMSIZE / gpu.l2


def attention_seconds(gpu: Gpu, config: ModelConfig, M: int, context: int) -> float:
    """Predicts the time of a layer's attention of M rows of one sequence."""
    Hq, Hkv, D = config.num_heads, config.num_kv_heads, config.head_dim
    key_bytes = 2 * Hkv * D * _ITEMSIZE  # of a key and its value in all heads
    readers = -(-M * (Hq // Hkv) // _PAIRS)
    read_bytes = (context * readers + M * _TAIL_KEYS) * key_bytes
    split_bytes = attention_splits(context) * M * Hq * (D + 2) * _FLOAT
    return max(context * key_bytes / gpu.copy, read_bytes / gpu.l2) + 2 * split_bytes / gpu.l2


def step_seconds(gpu: Gpu, config: ModelConfig, counts: Counts, context: int) -> float:
    """Predicts the time of a graph step of one sequence with M rows, without drafting."""
    H, heads, inner = config.hidden_size, config.num_heads * config.head_dim, config.intermediate_size
    qkv = heads + 2 * config.num_kv_heads * config.head_dim
    products = ((qkv, H), (H, heads), (H, inner))
    layer = sum(layer_product_seconds(gpu, counts, N, K) for N, K in products)
    layer += gate_up_seconds(gpu, counts, 2 * inner, H) + attention_seconds(gpu, config, counts.M, context)
    head = product_bounds(gpu, counts.M, counts.step, config.vocab_size, H, splits=1).longest
    launches = config.num_layers * counts.launches + STEP_LAUNCHES
    return launches * gpu.launch_seconds + config.num_layers * layer + head


def step_row(gpu: Gpu, model: str, all_counts: list[Counts]) -> str:
    """Returns a model's row of the printed table. all_counts: the counts of plain decoding, then with drafts."""
    config = ModelConfig.from_values(SHAPES[model])
    plain, *verify = (step_seconds(gpu, config, counts, CONTEXT) for counts in all_counts)
    share = pass_bytes(config, _ITEMSIZE, context=CONTEXT, batch=1) / gpu.copy / plain
    launches = config.num_layers * all_counts[0].launches + STEP_LAUNCHES
    ratios = " | ".join(f"{seconds / plain:.2f}" for seconds in verify)
    return f"| {model} | {launches} | {plain * 1e3:.2f} ms | {share:.0%} | {ratios} |"


def bounds_row(gpu: Gpu, model: str, counts: Counts) -> str:
    config = ModelConfig.from_values(SHAPES[model])
    bounds = gate_up_bounds(gpu, counts, 2 * config.intermediate_size, config.hidden_size)
    cells = " | ".join(f"{seconds * 1e6:.1f}" for seconds in (bounds.copy, bounds.l2, bounds.cycles))
    return f"| {model} | {counts.M} | {cells} |"


def main() -> int:
    all_counts = {model: [Counts.of(layer) for layer in measure(model)] for model in MODELS}
    print(f"Prediction for an H100, bfloat16, one sequence of {CONTEXT:,} tokens; nothing here is measured.\n")
    print("| shape | launches | T_plain | of a copy's bandwidth | T_verify(15) | T_verify(63) | T_verify(127) |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    for model, counts in all_counts.items():
        print(step_row(H100, model, counts))
    print("\nPredicted bounds of the gate_up product, in microseconds:\n")
    print("| shape | rows | copy | L2 cache | instructions and matrix products |")
    print("|---|---:|---:|---:|---:|")
    for model, counts in all_counts.items():
        print("\n".join(bounds_row(H100, model, of_rows) for of_rows in counts))
    return 0


if __name__ == "__main__":
    sys.exit(main())
