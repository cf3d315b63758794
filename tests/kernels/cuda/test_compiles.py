"""Compiles the CUDA kernels for an H100 and tests the compiled code, which Triton's interpreter does not produce.

The kernels fit into the shared memory of an H100. Each kernel uses the same matrix instruction for any number of rows.
"""

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]


@dataclass(frozen=True, slots=True)
class Compiled:
    kernels: list[dict[str, Any]]
    folder: Path  # has a folder with the compiler's output for each variant of a kernel

    def matrix_instructions(self, kernel: str) -> set[str]:
        """Returns the matrix instructions (PTX) of all variants of the kernel."""
        sources = [file.read_text(encoding="utf-8") for file in self.folder.glob(f"*/{kernel}.ptx")]
        return {match for source in sources for match in re.findall(r"\b(?:wgmma\.mma_async|mma)\.sync[\w.]+", source)}


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Compiled:
    folder = tmp_path_factory.mktemp("triton")
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment |= {"TRITON_CACHE_DIR": str(folder), "CUDA_VISIBLE_DEVICES": ""}
    kernels: list[dict[str, Any]] = []
    compilers = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.kernels.cuda.compiled", which],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for which in ("layers", "other kernels")
    ]
    for compiler in compilers:
        output, errors = compiler.communicate()
        assert compiler.returncode == 0, errors
        kernels += [json.loads(line) for line in output.splitlines()]
    return Compiled(kernels, folder)


def test_every_kernel_compiles_for_an_h100(compiled: Compiled) -> None:
    sources = [file.read_text(encoding="utf-8") for file in (ROOT / "kernels" / "cuda").glob("*.py")]
    names = {name for source in sources for name in re.findall(r"^def (_\w+_kernel)\(", source, re.MULTILINE)}
    assert {kernel["name"] for kernel in compiled.kernels} == names


def test_no_kernel_spills_registers_and_two_programs_fit_into_an_sm(compiled: Compiled) -> None:
    # A few bytes outside loops cost no time: triton 3.6 uses 8 bytes of stack where 3.7 uses none.
    assert [kernel for kernel in compiled.kernels if kernel["stack"] > 8] == []
    assert [kernel for kernel in compiled.kernels if kernel["shared"] > 113 * 1024] == []  # half of an SM


def test_each_matrix_product_uses_one_instruction_for_any_number_of_rows(compiled: Compiled) -> None:
    """With another instruction, sums could be rounded differently, and a row's bits would depend on the batch."""
    # In products, the right operand has 16 rows (n16). In attention, the left has 16 pairs of a row and a head (m16).
    rows_as_right_operand = {"wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16"}
    pairs_as_left_operand = {"mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32"}
    for kernel in (
        "_product_kernel",
        "_swiglu_product_kernel",
        "_expert_product_kernel",
        "_sample_kernel",
        "_best_kernel",
    ):
        assert compiled.matrix_instructions(kernel) == rows_as_right_operand, kernel
    for kernel in ("_prefix_kernel", "_tail_kernel"):
        assert compiled.matrix_instructions(kernel) == pairs_as_left_operand, kernel
