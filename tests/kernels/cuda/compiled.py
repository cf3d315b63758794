"""Compiles the kernels for an H100 on a machine without a GPU.

Tensors have the shapes of real models. Large tensors are never written, so they use no memory. For each kernel, the
program prints one line of JSON with its name, shared memory, registers and stack. The argument selects the kernels,
"layers" or "other kernels", so that two processes can compile at the same time.

Letters: M rows, H hidden size, V vocabulary, K columns of a weight, Hq query heads and Hkv KV heads of dimension D.
"""

import json
import sys

import torch
from torch import Tensor

from benchmarks.gpu.fake_driver import CompiledKernel, FakeDriver
from kernels.attention import AttentionRows
from kernels.candidates import RowSampling
from kernels.cuda.attention import attention
from kernels.cuda.candidates import candidates
from kernels.cuda.experts import mix_experts, route_softmax
from kernels.cuda.filtered import sample_filtered_rows
from kernels.cuda.linear import linear, linear_parts
from kernels.cuda.lm_head import best_tokens, sample_rows
from kernels.cuda.lora import stacked_lora
from kernels.cuda.losses import blend_rows, loss_rows
from kernels.cuda.medusa import medusa_heads
from kernels.cuda.norm import add_rms_norm
from kernels.cuda.rope import rope_write
from kernels.cuda.swiglu import swiglu, swiglu_linear
from kernels.cuda.tree import accept_trees, grow_trees
from kernels.cuda.tree_rows import tree_rows
from kernels.experts import ClampedGate, Expert, Experts, Stack
from kernels.linear import LinearWeight
from kernels.lm_head import BestTokens, Head, SampledRows
from kernels.lora import LoraStack
from kernels.losses import Blend, Loss
from kernels.rope import HeadNorms
from kernels.tree import Commit
from kernels.tree_rows import Roots

_BF16 = torch.bfloat16


def print_record(kernel: CompiledKernel) -> None:
    record = {"name": kernel.name, "shared": kernel.shared, "registers": kernel.registers, "stack": kernel.stack}
    print(json.dumps(record), flush=True)


def empty(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.empty(shape, dtype=dtype)


def zero_integers(*shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
    return torch.zeros(shape, dtype=dtype)


def compile_attention(M: int, Hq: int, Hkv: int, D: int) -> None:
    rows = AttentionRows(
        slot_tables=zero_integers(8, 32_768, dtype=torch.int32),
        seqs=zero_integers(M),
        prefix_lens=zero_integers(M),
        paths=zero_integers(M, 16, dtype=torch.int32),
        path_lens=zero_integers(M),
    )
    cache = empty(40_000, Hkv, D, dtype=_BF16)  # 40,000 slots
    attention(empty(M, Hq, D), cache, cache, rows)


def compile_layer(M: int, H: int, Hq: int, Hkv: int, D: int, inner: int) -> None:
    """Compiles the operations of a decoder layer in bfloat16. `inner` is the intermediate size of the MLP."""
    product = linear_parts(empty(M, H, dtype=_BF16), empty((Hq + 2 * Hkv) * D, H, dtype=_BF16))
    tables = (empty(40_000, D // 2), empty(40_000, D // 2), zero_integers(M), zero_integers(M))
    cache, norms = empty(40_000, Hkv, D, dtype=_BF16), HeadNorms(empty(D), empty(D), 1e-6)
    rope_write(product, *tables, cache, cache, norms, empty(M, Hq * D))
    compile_attention(M, Hq, Hkv, D)
    output = linear_parts(empty(M, Hq * D, dtype=_BF16), empty(H, Hq * D, dtype=_BF16))
    add_rms_norm(output, empty(M, H), empty(H), 1e-5, _BF16)
    x, gate_up = empty(M, H, dtype=_BF16), empty(2 * inner, H, dtype=_BF16)
    swiglu(linear_parts(x, gate_up), _BF16)
    activated = swiglu_linear(x, gate_up, None, None)
    linear_parts(activated, empty(H, inner, dtype=_BF16))


def compile_lm_head(M: int, V: int, K: int) -> None:
    x, head = empty(M, K, dtype=_BF16), Head(data=empty(V, K, dtype=_BF16))
    sample_rows(x, head, SampledRows(empty(M, dtype=torch.float64), zero_integers(M), zero_integers(M)), None)
    best_tokens(x, head, 8, None)


def compile_trees_and_sampling() -> None:
    """Compiles the kernels that grow, lay out and accept trees, rank candidates, and sample with filters."""
    trees = grow_trees(zero_integers(8, 16, 8), empty(8, 16, 8), 64)
    tables = Commit(
        slot_tables=zero_integers(8, 32_768, dtype=torch.int32),
        table_rows=zero_integers(8),
        positions=zero_integers(8),
        node_slots=zero_integers(8, 64, dtype=torch.int32),
    )
    accept_trees(zero_integers(8, 65), trees, tables)
    tree_rows(
        trees,
        Roots(
            slot_tables=tables.slot_tables,
            table_rows=zero_integers(8),
            lengths=zero_integers(8),
            tokens=zero_integers(8),
            slots=zero_integers(8, 65, dtype=torch.int32),
        ),
        depth=16,
        last_position=40_000,
    )
    sampling = RowSampling(
        temperatures=empty(16, dtype=torch.float64),
        seeds=zero_integers(16),
        positions=zero_integers(16),
        top_ks=zero_integers(16),
        top_ps=empty(16, dtype=torch.float64),
        min_ps=empty(16, dtype=torch.float64),
    )
    candidates(BestTokens(empty(16, 8), zero_integers(16, 8), empty(16)), sampling)
    sample_filtered_rows(torch.zeros(16, 4096), sampling)


def compile_experts(M: int, H: int, inner: int, E: int, K: int, gate: ClampedGate | None = None) -> None:
    """Compiles a mixture of experts in bfloat16, with biases if the gate is clamped as in gpt-oss."""

    def weight(N: int, K: int) -> LinearWeight:
        data = empty(N, K, dtype=_BF16)
        return LinearWeight(data=data, scales=None, bias=None, out_features=N, in_features=K, dtype=_BF16, packed=False)

    experts = Experts([Expert(weight(2 * inner, H), weight(H, inner))] * E, gate)
    sizes = ((2 * inner, H), (H, inner))
    stacks = [Stack(empty(E, *size, dtype=_BF16), None, empty(E, size[0]) if gate else None) for size in sizes]
    experts.gate_up, experts.down = stacks
    chosen, weights = route_softmax(empty(M, E), K, True)
    mix_experts(empty(M, H, dtype=_BF16), chosen, weights, experts, empty(M, H))


def compile_layers() -> None:
    compile_layer(1, 4096, 32, 8, 128, 14_336)  # Llama-3.1-8B
    compile_layer(16, 2048, 32, 8, 64, 8192)  # Llama-3.2-1B
    compile_layer(128, 4096, 32, 8, 128, 12_288)  # Qwen3-8B
    compile_attention(16, 28, 4, 128)  # seven query heads per KV head
    compile_attention(16, 16, 8, 256)  # wide heads
    compile_experts(1, 2048, 768, 128, 8)  # Qwen3-30B-A3B
    compile_experts(64, 4096, 14_336, 8, 2)  # Mixtral-8x7B
    compile_experts(16, 2880, 2880, 32, 4, ClampedGate(1.702, 7.0))  # gpt-oss-20b


def compile_other_kernels() -> None:
    for dtype in (torch.int8, torch.float8_e4m3fn):
        linear(empty(16, 4096, dtype=_BF16), empty(6144, 4096, dtype=dtype), empty(6144), None, empty(16, 6144))
        swiglu_linear(empty(128, 4096, dtype=_BF16), empty(28_672, 4096, dtype=dtype), empty(28_672), None)
    for M in (1, 128):
        compile_lm_head(M, 128_256, 4096)
    stacked_lora(
        empty(16, 4096, dtype=_BF16),
        empty(16, 6144),
        zero_integers(16),
        LoraStack(empty(4, 64, 4096, dtype=_BF16), empty(4, 6144, 64, dtype=_BF16)),
    )
    x = empty(16, 4096, dtype=_BF16)
    medusa_heads(x, linear_parts(x, empty(4 * 4096, 4096, dtype=_BF16)), 4)
    compile_trees_and_sampling()
    blend = Blend(zero_integers(64), empty(2, 128_256), zero_integers(64), 0.5)
    blend_rows(empty(64, 128_256), blend, gradient=True)
    for kind in Loss:
        against = zero_integers(64) if kind is Loss.CROSS_ENTROPY else empty(64, 128_256)
        loss_rows(kind, empty(64, 128_256), against, empty(64))


if __name__ == "__main__":
    FakeDriver(print_record).activate()
    {"layers": compile_layers, "other kernels": compile_other_kernels}[sys.argv[1]]()
