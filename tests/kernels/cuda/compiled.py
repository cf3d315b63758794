"""Compiles the kernels for an H100 on a machine without a GPU.

A fake driver replaces CUDA's and launches nothing. Tensors have the shapes of real models; they are never written and
so take no memory. Prints one line of JSON per kernel with its name, shared memory, registers and stack. The argument
selects the kernels, "layers" or "other kernels", so that two processes can share the work.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from kernels.attention import AttentionRows
from kernels.candidates import RowSampling
from kernels.cuda.attention import attention
from kernels.cuda.candidates import candidates
from kernels.cuda.filtered import sample_filtered_rows
from kernels.cuda.linear import linear, linear_parts
from kernels.cuda.lm_head import best_tokens, sample_rows
from kernels.cuda.lora import stacked_lora
from kernels.cuda.losses import blend_rows, loss_rows
from kernels.cuda.medusa import medusa_heads
from kernels.cuda.norm import add_rms_norm
from kernels.cuda.rope import rope_write
from kernels.cuda.swiglu import swiglu
from kernels.cuda.tree import accept_trees, grow_trees
from kernels.cuda.tree_rows import tree_rows
from kernels.lm_head import BestTokens, Head, SampledRows
from kernels.lora import LoraStack
from kernels.losses import Blend, Loss
from kernels.rope import HeadNorms
from kernels.tree import Commit
from kernels.tree_rows import Roots

H100_SHARED_BYTES = 232_448
_CUOBJDUMP = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
_BF16 = torch.bfloat16


class _Utils:
    def load_binary(self, name: str, binary: bytes, shared: int, device: int) -> tuple[int, int, int, int, int]:
        with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
            file.write(binary)
            file.flush()
            command = [str(_CUOBJDUMP), "-res-usage", file.name]
            usage = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        words = dict(word.split(":", 1) for word in usage.split() if word.startswith(("REG:", "STACK:")))
        record = {"name": name, "shared": shared, "registers": int(words["REG"]), "stack": int(words["STACK"])}
        print(json.dumps(record), flush=True)
        return 0, 0, 0, 0, 1024

    def get_device_properties(self, device: int) -> dict[str, int]:
        return {"max_shared_mem": H100_SHARED_BYTES}


class _Driver:
    utils = _Utils()

    def launcher_cls(self, source: Any, metadata: Any) -> Callable[..., None]:
        return lambda *_: None

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


def empty(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.empty(shape, dtype=dtype)


def integers(*shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
    return torch.zeros(shape, dtype=dtype)


def attend(M: int, Hq: int, Hkv: int, D: int) -> None:
    rows = AttentionRows(
        integers(8, 32_768, dtype=torch.int32),
        integers(M),
        integers(M),
        integers(M, 16, dtype=torch.int32),
        integers(M),
    )
    cache = empty(40_000, Hkv, D, dtype=_BF16)
    attention(empty(M, Hq, D), cache, cache, rows)


def layer(M: int, H: int, Hq: int, Hkv: int, D: int, inner: int) -> None:
    """Compiles a layer's operations in bfloat16 at a model's shapes."""
    product = linear_parts(empty(M, H, dtype=_BF16), empty((Hq + 2 * Hkv) * D, H, dtype=_BF16))
    tables = (empty(40_000, D // 2), empty(40_000, D // 2), integers(M), integers(M))
    cache, norms = empty(40_000, Hkv, D, dtype=_BF16), HeadNorms(empty(D), empty(D), 1e-6)
    rope_write(product, *tables, cache, cache, norms, empty(M, Hq * D))
    attend(M, Hq, Hkv, D)
    output = linear_parts(empty(M, Hq * D, dtype=_BF16), empty(H, Hq * D, dtype=_BF16))
    add_rms_norm(output, empty(M, H), empty(H), 1e-5, _BF16)
    activated = swiglu(linear_parts(empty(M, H, dtype=_BF16), empty(2 * inner, H, dtype=_BF16)), _BF16)
    linear_parts(activated, empty(H, inner, dtype=_BF16))


def heads(M: int, V: int, K: int) -> None:
    x, head = empty(M, K, dtype=_BF16), Head(data=empty(V, K, dtype=_BF16))
    sample_rows(x, head, SampledRows(empty(M, dtype=torch.float64), integers(M), integers(M)), None)
    best_tokens(x, head, 8, None)


def trees_and_sampling() -> None:
    """Compiles the kernels for trees, from candidates to acceptance, and for sampling."""
    trees = grow_trees(integers(8, 16, 8), empty(8, 16, 8), 64)
    tables = Commit(
        slot_tables=integers(8, 32_768, dtype=torch.int32),
        table_rows=integers(8),
        positions=integers(8),
        node_slots=integers(8, 64, dtype=torch.int32),
    )
    accept_trees(integers(8, 65), trees, tables)
    tree_rows(
        trees,
        Roots(
            slot_tables=tables.slot_tables,
            table_rows=integers(8),
            lengths=integers(8),
            tokens=integers(8),
            slots=integers(8, 65, dtype=torch.int32),
        ),
        depth=16,
        last_position=40_000,
    )
    sampling = RowSampling(
        temperatures=empty(16, dtype=torch.float64),
        seeds=integers(16),
        positions=integers(16),
        top_ks=integers(16),
        top_ps=empty(16, dtype=torch.float64),
        min_ps=empty(16, dtype=torch.float64),
    )
    candidates(BestTokens(empty(16, 8), integers(16, 8), empty(16)), sampling)
    sample_filtered_rows(torch.zeros(16, 4096), sampling)


def layers() -> None:
    layer(1, 4096, 32, 8, 128, 14_336)  # Llama-3.1-8B
    layer(16, 2048, 32, 8, 64, 8192)  # Llama-3.2-1B
    layer(128, 4096, 32, 8, 128, 12_288)  # Qwen3-8B
    attend(16, 28, 4, 128)  # seven heads per group
    attend(16, 16, 8, 256)


def other_kernels() -> None:
    for dtype in (torch.int8, torch.float8_e4m3fn):
        linear(empty(16, 4096, dtype=_BF16), empty(6144, 4096, dtype=dtype), empty(6144), None, empty(16, 6144))
    for M in (1, 128):
        heads(M, 128_256, 4096)
    stacked_lora(
        empty(16, 4096, dtype=_BF16),
        empty(16, 6144),
        integers(16),
        LoraStack(empty(4, 64, 4096, dtype=_BF16), empty(4, 6144, 64, dtype=_BF16)),
    )
    x = empty(16, 4096, dtype=_BF16)
    medusa_heads(x, linear_parts(x, empty(4 * 4096, 4096, dtype=_BF16)), 4)
    trees_and_sampling()
    blend = Blend(integers(64), empty(2, 128_256), integers(64), 0.5)
    blend_rows(empty(64, 128_256), blend, gradient=True)
    for kind in Loss:
        against = integers(64) if kind is Loss.CROSS_ENTROPY else empty(64, 128_256)
        loss_rows(kind, empty(64, 128_256), against, empty(64))


if __name__ == "__main__":
    driver.set_active(_Driver())
    {"layers": layers, "other kernels": other_kernels}[sys.argv[1]]()
