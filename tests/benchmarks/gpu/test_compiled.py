"""`benchmarks.kernels --compiled` counts launches, programs and instructions without a GPU."""

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.gpu.fake_driver import main_loop

ROOT = Path(__file__).resolve().parents[3]

SASS = """
        /*0010*/                   HGMMA.64x16x16.F32.BF16 R24, gdesc[UR4], R24 ;      /* 0x00200000041879f0 */
        /*0020*/                   LDG.E R1, [R2] ;                                    /* 0x00200000041879f0 */
        /*0030*/                   HGMMA.64x16x16.F32.BF16 R24, gdesc[UR4], R24 ;      /* 0x00200000041879f0 */
                                                                                       /* 0x000fe2000001ff00 */
        /*0040*/              @!P6 BRA 0x20 ;                                          /* 0xfffffff80068e947 */
        /*0050*/                   FADD R1, R2, R3 ;                                   /* 0x00200000041879f0 */
        /*0060*/               @P1 BRA 0x50 ;                                          /* 0xfffffff80068e947 */
        /*0070*/                   BRA 0x70;                                           /* 0xfffffffc00fc7947 */
"""


def test_the_main_loop_is_the_innermost_loop_with_matrix_products() -> None:
    assert main_loop(SASS) == ["LDG.E", "HGMMA.64x16x16.F32.BF16", "BRA"]
    assert main_loop(SASS.replace("HGMMA", "FFMA")) == []


@pytest.mark.wide
def test_one_sequence_on_a_large_server_launches_few_programs(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.kernels", "--compiled"]
    environment = {"PATH": "/usr/bin:/bin", "TRITON_CACHE_DIR": str(tmp_path)}
    output = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True).stdout

    lines = [[cell.strip().replace(",", "") for cell in line.strip("|").split("|")] for line in output.splitlines()]
    rows, launches, programs, for_tables, for_sequences, short = (int(cell) for cell in lines[3])
    assert rows == 16
    assert launches <= 9
    assert short < for_sequences <= 2000 < for_tables
    assert programs > short
    products = {int(line[1]): int(line[6]) for line in lines[8:] if line[0] == "_product_kernel"}
    assert products == {1: 4, 64: 16, 128: 32}
