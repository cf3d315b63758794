"""`benchmarks.gpu.predict` computes times of a step by its formula; the expected values here are computed by hand.

Letters: M rows, N outputs and K inputs of a product, H hidden size. An SM is a multiprocessor of the GPU.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.gpu.predict import (
    Counts,
    Gpu,
    KStep,
    attention_seconds,
    gate_up_bounds,
    gate_up_seconds,
    product_bounds,
    step_seconds,
)
from benchmarks.gpu.shapes import SHAPES
from engine.config import ModelConfig

ROOT = Path(__file__).resolve().parents[3]

# With these rates, a byte from memory takes 4 s, a byte from the L2 cache 1 s, and a cycle 1 s.
GPU = Gpu(copy=0.25, l2=1.0, launch_seconds=1000.0, num_sms=2, clock=1.0, shared_bytes=128)
STEP = KStep(instructions=100, products=4)
ONE_ROW = Counts(M=1, launches=10, step=STEP)


def test_a_product_of_one_row_is_bounded_by_weight_rows_and_instructions() -> None:
    bounds = product_bounds(GPU, 1, STEP, N=192, K=128, splits=1)
    assert bounds.copy == 4 * 192 * 128 * 2
    assert bounds.l2 == 192 * 128 * 2 + 3 * 128 * 2  # the weight, and the row once for each of 3 blocks of outputs
    assert bounds.cycles == 2 * 2 * 100  # one of 2 SMs has 2 of the 3 programs, with 2 K-steps each
    assert bounds.longest == bounds.copy


def test_splits_of_k_divide_the_k_steps_among_more_programs() -> None:
    assert product_bounds(GPU, 1, STEP, N=128, K=256, splits=2).cycles == 2 * 2 * 100


def test_more_than_128_rows_read_the_weight_again() -> None:
    bounds = product_bounds(GPU, 129, KStep(instructions=100, products=32), N=64, K=64, splits=1)
    assert bounds.copy == 4 * 64 * 64 * 2
    assert bounds.l2 == 2 * 64 * 64 * 2 + 129 * 64 * 2
    assert bounds.cycles == 32 * (64 + 16) * 16 * 2 / 128  # reading the operands takes longer than the instructions


def test_the_time_of_a_step_is_the_sum_of_launches_layers_and_head() -> None:
    config = ModelConfig.from_values(SHAPES["tiny"])  # H 32; 4 query and 2 KV heads of 16 numbers
    # There are 2 layers, an intermediate size of 64 and a vocabulary of 96.
    # Products: qkv [128, 32], output [32, 64], gate_up [128, 32], down [32, 64]. The time of each product is bounded by
    # copying its weight. Each product has one split, whose sums are written and read.
    weights = 4 * 2 * (128 * 32 + 32 * 64 + 128 * 32 + 32 * 64)
    sums = 2 * 4 * (128 + 32 + 128 + 32)
    attention = 4 * (100 * 128)  # 100 keys and values of 2 heads of 16 numbers; the prefix of 0 keys has no split
    head = 4 * 2 * 96 * 32
    assert attention_seconds(GPU, config, 1, 100) == attention
    assert step_seconds(GPU, config, ONE_ROW, 100) == (2 * 10 + 31) * 1000 + 2 * (weights + sums + attention) + head


def test_the_fused_kernel_of_gate_up_and_swiglu_reads_rows_half_as_often_and_writes_no_sums() -> None:
    counts = Counts(M=16, launches=9, step=STEP, gated=KStep(instructions=150, products=8))
    bounds = gate_up_bounds(GPU, counts, N=256, K=64)
    assert bounds.copy == 4 * 256 * 64 * 2
    assert bounds.l2 == 256 * 64 * 2 + 2 * 16 * 64 * 2  # two programs, each with 64 gate and 64 up outputs
    assert bounds.cycles == 160  # reading the operands of 8 matrix products; each SM has one program of one K-step
    assert gate_up_seconds(GPU, counts, N=256, K=64) == bounds.copy + 2 * 16 * 128 * 2
    assert gate_up_bounds(GPU, ONE_ROW, N=256, K=64).cycles == 2 * 100


def test_attention_of_many_rows_reads_the_keys_from_the_cache_again() -> None:
    config = ModelConfig.from_values(SHAPES["tiny"])
    # The 128 rows x 2 query heads of each key head are 4 groups of 64 pairs. Each row reads 96 keys on its own.
    # The prefix of 128 keys is one split. For each row and head, 16 numbers, a maximum and a sum are written and read.
    read, splits = (128 * 4 + 128 * 96) * 128, 128 * 4 * 18 * 4
    assert attention_seconds(GPU, config, 128, 128) == pytest.approx(read + 2 * splits)


@pytest.mark.soak  # compiles the kernels of two shapes
def test_the_command_counts_the_launches_of_every_shape_and_calls_its_result_a_prediction(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.gpu.predict"]
    environment = {"PATH": "/usr/bin:/bin", "TRITON_CACHE_DIR": str(tmp_path)}
    output = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True).stdout

    heading, _, *lines = output.splitlines()
    assert heading.startswith("Prediction")
    assert heading.endswith("nothing here is measured.")
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:4]]
    assert [row[:2] for row in cells] == [
        ["llama-3.1-8b", str(32 * 9 + 31)],
        ["llama-3.2-1b", str(16 * 9 + 31)],
    ]
    for row in cells:
        assert 1.0 < float(row[4]) < float(row[5]) < float(row[6])
