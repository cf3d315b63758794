"""The CPU kernels also pass their tests if they are compiled for a processor without AMX, AVX-512, or AVX."""

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from kernels.cpu.library import library, uses_amx
from kernels.linear import pack, pack_int4, pack_int8
from tests.kernels import test_attention, test_decoder, test_experts, test_linear

ROOT = Path(__file__).resolve().parents[2]


def run_kernel_tests() -> None:
    """Runs some tests of the other files. Their parameters cover each variant of the kernels."""
    assert library() is not None
    for dtype in (torch.float32, torch.bfloat16):
        test_attention.test_attention_agrees_with_the_formula("compiled", dtype, 9, 3, 64)
        test_attention.test_keys_in_the_slot_table_and_keys_on_the_path_give_the_same_bits("compiled", dtype)
        test_attention.test_rows_that_share_a_long_prefix_have_the_same_bits_as_single_rows(dtype, 9, 64)
        test_linear.test_the_product_agrees_with_float64("compiled", dtype, 17, 100, 130, True)
        test_linear.test_the_product_with_int8_weights_uses_the_rounded_weights("compiled", dtype, 17, 100, 130, True)
        test_linear.test_the_product_with_int4_weights_uses_the_values_and_scales_of_each_group(
            "compiled", dtype, 9, 33, 96, True
        )
        for packed in (pack, pack_int8, pack_int4):
            test_linear.test_the_result_of_a_row_does_not_depend_on_the_number_of_rows("compiled", dtype, packed)
        for int8, mixtures in ((False, ()), (True, ()), (False, (1,))):
            test_decoder.test_the_compiled_decoder_gives_the_same_bits_as_single_operations(
                dtype, 9, True, True, int8, mixtures
            )
            test_decoder.test_the_result_of_a_row_does_not_depend_on_the_number_of_rows(dtype, int8, mixtures)
    for gate in test_experts.GATES:
        test_experts.test_the_output_is_the_weighted_sum_of_the_experts(96, gate, True)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="other processors always use the portable kernels")
@pytest.mark.parametrize(
    "flag",
    [
        pytest.param("-mno-amx-tile", marks=pytest.mark.skipif(not uses_amx(), reason="this machine has no AMX")),
        "-mno-avx512f",
        "-mno-avx",
    ],
)
def test_kernel_tests_pass_without_instructions_that_many_processors_lack(tmp_path: Path, flag: str) -> None:
    compiler = tmp_path / "cc"
    compiler.write_text(f'#!/bin/sh\nexec {shutil.which("cc")} "$@" {flag}\n')
    compiler.chmod(0o755)
    environment = os.environ | {"CC": str(compiler), "XDG_CACHE_HOME": str(tmp_path), "OMP_NUM_THREADS": "1"}
    command = [
        sys.executable,
        "-W",
        "error",
        "-c",
        "from tests.kernels.test_portable import run_kernel_tests as run; run()",
    ]
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert list((tmp_path / "slipstream" / "kernels").glob("cpu-*.so"))
