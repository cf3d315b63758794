"""Compiles the kernels of a decoder layer for an H100, without a GPU, and prints their launches and instructions.

    python -m benchmarks.kernels --compiled

The counts are of one layer in the shape of Llama-3.1-8B, in bfloat16, for one sequence with a draft tree of 1, 16, 64
or 128 rows, on a server whose slot tables have 16 sequences of 131,072 positions and one for padding.

launches        kernels launched per layer
programs        programs of all these launches
prefix programs programs of the kernel for attention to the prefix, for three grids: all sequences and positions of the
                slot tables; only the sequences of the pass; only these sequences and a short context's keys
registers ...   of each variant of a kernel, with the smallest row count that uses it; shared memory in bytes per
                program, stack in bytes per thread
K-step          an iteration of the innermost loop with matrix products, over the summed dimension K: its instructions,
                and how many of them are matrix products
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache

import torch
from torch import Tensor

import kernels.cuda.decoder
from benchmarks.gpu.fake_driver import CompiledKernel, FakeDriver, Launch, dump, is_matrix_product, main_loop
from benchmarks.gpu.shapes import SHAPES
from engine.graph_decoding.runner import SHORT_CONTEXT
from kernels.attention import AttentionRows
from kernels.cuda.attention import attention
from kernels.decoder import DecoderLayers, DecoderRows, DecoderShape, LayerWeights
from kernels.linear import LinearWeight

MODEL = "llama-3.1-8b"
ROW_COUNTS = (1, 16, 64, 128)
_MAX_SEQUENCES, _CONTEXT = 16, 131_072
_BF16 = torch.bfloat16


@dataclass(frozen=True, slots=True)
class LayerLaunches:
    """The launches of one layer with M rows, and the programs of the attention to the prefix for three grids."""

    M: int
    launches: list[Launch]
    unbounded_programs: int  # for all sequences and positions of the slot tables
    bounded_programs: int  # for the sequences of the pass
    short_programs: int  # for the sequences of the pass and the keys of a short context

    def row(self) -> str:
        total = sum(launch.num_programs for launch in self.launches)
        prefix = f"{self.unbounded_programs:,} | {self.bounded_programs:,} | {self.short_programs:,}"
        return f"| {self.M} | {len(self.launches)} | {total:,} | {prefix} |"


def measure(model: str = MODEL) -> Iterator[LayerLaunches]:
    """Yields the launches of a model's layer for each row count. Effects: this process can no longer use a GPU."""
    launches = _recorded_launches()
    for M in ROW_COUNTS:
        counts, one_layer = [], []
        for max_seqs, max_keys in ((None, None), (1, None), (1, SHORT_CONTEXT)):
            launches.clear()
            _run(model, replace(_rows(M), max_seqs=max_seqs, max_keys=max_keys), num_layers=1)
            one_layer = list(launches)
            counts.append(sum(launch.num_programs for launch in launches if launch.kernel.name == "_prefix_kernel"))
        launches.clear()
        _run(model, replace(_rows(M), max_seqs=1, max_keys=SHORT_CONTEXT), num_layers=2)
        yield LayerLaunches(M, launches[len(one_layer) :], *counts)


@cache
def _recorded_launches() -> list[Launch]:
    """Activates the fake driver and returns the list to which it adds launches.

    All calls share a driver, because a compiled kernel always reports to the driver that has loaded it.
    """
    launches: list[Launch] = []
    FakeDriver(on_compiled=lambda _: None, on_launch=launches.append).activate()
    # `kernels.attention` would compute with the CPU's kernels, because the tensors are in the host's memory.
    kernels.cuda.decoder.attention = attention  # type: ignore[assignment,attr-defined]
    return launches


def _run(model: str, rows: AttentionRows, *, num_layers: int) -> None:
    values = SHAPES[model]
    M, H, inner = rows.seqs.shape[0], values["hidden_size"], values["intermediate_size"]
    Hq, Hkv, D = values["num_attention_heads"], values["num_key_value_heads"], values["head_dim"]
    layer = LayerWeights(
        input_norm=torch.empty(H),
        qkv=_weight((Hq + 2 * Hkv) * D, H),
        head_norms=None,
        output=_weight(H, Hq * D),
        post_norm=torch.empty(H),
        gate_up=_weight(2 * inner, H),
        down=_weight(H, inner),
    )
    shape = DecoderShape(
        hidden_size=H,
        intermediate_size=inner,
        num_heads=Hq,
        num_kv_heads=Hkv,
        head_dim=D,
        norm_eps=values["rms_norm_eps"],
        dtype=_BF16,
    )
    tables = torch.empty(2, _CONTEXT, D // 2)
    layers = DecoderLayers(shape, (layer,) * num_layers, torch.empty(H), *tables)
    caches = [torch.empty(_CONTEXT, Hkv, D, dtype=_BF16)] * num_layers
    integers = torch.zeros(M, dtype=torch.int64)
    decoder_rows = DecoderRows(integers, integers, rows)
    kernels.cuda.decoder.decoder(layers, torch.empty(M, H), decoder_rows, caches, caches, (), None)


def _weight(N: int, K: int) -> LinearWeight:
    data = torch.empty(N, K, dtype=_BF16)
    return LinearWeight(data=data, scales=None, bias=None, out_features=N, in_features=K, dtype=_BF16, packed=False)


def _rows(M: int) -> AttentionRows:
    def zeros(*shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
        return torch.zeros(shape, dtype=dtype)

    tables = torch.empty(1 + _MAX_SEQUENCES, _CONTEXT, dtype=torch.int32)
    return AttentionRows(tables, zeros(M), zeros(M), zeros(M, 8, dtype=torch.int32), zeros(M))


def k_step(kernel: CompiledKernel) -> tuple[int, int]:
    """Returns the numbers of instructions and of matrix products per K-step; zeros if no loop has matrix products."""
    body = main_loop(dump(kernel.cubin, "-sass"))
    return len(body), sum(map(is_matrix_product, body))


def kernel_row(M: int, kernel: CompiledKernel) -> str:
    instructions, products = k_step(kernel)
    per_step = f"{instructions} | {products}" if instructions else "- | -"
    return f"| {kernel.name} | {M} | {kernel.registers} | {kernel.shared:,} | {kernel.stack} | {per_step} |"


def main() -> int:
    measured = list(measure())
    print("| rows | launches | programs | prefix programs: tables | sequences | short context |")
    print("|---:|---:|---:|---:|---:|---:|")
    for layer in measured:
        print(layer.row())
    print("\n| kernel | rows | registers | shared | stack | instructions per K-step | matrix products |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    variants = {launch.kernel: layer.M for layer in reversed(measured) for launch in layer.launches}
    rows = {kernel_row(M, kernel): None for kernel, M in sorted(variants.items(), key=lambda item: item[1])}
    print("\n".join(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
