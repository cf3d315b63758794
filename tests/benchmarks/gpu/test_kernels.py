"""The kernel benchmark: its checks find faulty kernels, its arithmetic is correct, and a dry run works on the CPU."""

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor

from benchmarks import kernels
from benchmarks.gpu import table
from benchmarks.gpu.case import Case, RowInvariance, check, different_windows, relative_error, windows
from benchmarks.gpu.clock import interleaved
from benchmarks.gpu.peak_rates import PeakRates, Work, copy_bandwidth, product_flops
from benchmarks.gpu.poison import Poisoned
from benchmarks.gpu.record import folder_name

PEAK_RATES = PeakRates(copy_bytes_per_second=100.0, flops_per_second=1000.0)


def case_of(num_written: int, num_beyond: int = 0) -> Case:
    """Makes a case of a kernel that should write four ones, but writes `num_written + num_beyond` ones.

    num_beyond: number of ones that are written out of bounds; requires `num_written` = 4.
    """

    def run() -> list[Tensor]:
        out = torch.empty(4)
        out.as_strided((num_written + num_beyond,), (1,)).fill_(1.0)
        return [out]

    return Case(
        operation="ones",
        shape="4",
        run=run,
        error=relative_error(lambda: [torch.ones(4, dtype=torch.float64)]),
        tolerance=1e-6,
        work=Work(num_bytes=16),
    )


def test_a_kernel_that_writes_its_output_and_nothing_else_passes() -> None:
    assert check(case_of(4)).passed


def test_a_kernel_that_does_not_write_an_element_fails() -> None:
    found = check(case_of(3))
    assert not found.passed
    assert found.error != found.error, "the error must be NaN"


def test_the_position_of_an_out_of_bounds_write_is_found() -> None:
    found = check(case_of(4, num_beyond=2))
    assert found.error == 0.0
    assert found.damage == ["8 bytes written outside a tensor of 16 bytes, the first at offset 16"]
    assert not found.passed


@pytest.mark.parametrize("dtype", [torch.int8, torch.int32, torch.int64, torch.bfloat16, torch.float64])
def test_memory_is_poisoned_by_every_allocation_function(dtype: torch.dtype) -> None:
    like = torch.zeros(3, dtype=dtype)
    with Poisoned():
        made = [torch.empty(3, dtype=dtype), torch.empty_like(like), like.new_empty(3)]
    for memory in made:
        assert memory.isnan().all() if dtype.is_floating_point else (memory < -100).all()


def test_the_lower_bound_of_the_time_is_the_longer_of_memory_traffic_and_arithmetic() -> None:
    assert Work(num_bytes=200, flops=1000).lower_bound_seconds(PEAK_RATES) == 2.0
    assert Work(num_bytes=200, flops=1000).bound(PEAK_RATES) == "bandwidth"
    assert Work(num_bytes=200, flops=4000).lower_bound_seconds(PEAK_RATES) == 4.0
    assert Work(num_bytes=200, flops=4000).bound(PEAK_RATES) == "arithmetic"
    assert Work(num_bytes=200).share(4.0, PEAK_RATES) == 0.5


def test_bandwidth_counts_reads_and_writes_and_flops_count_multiplications_and_additions() -> None:
    assert copy_bandwidth(3, 2.0) == 3.0
    assert product_flops(2, 3, 5) == 60


def test_every_second_repetition_of_interleaved_runs_the_functions_in_reverse_order() -> None:
    order: list[str] = []

    def timed_run(name: str, seconds: float) -> float:
        order.append(name)
        return seconds

    found = interleaved({"a": lambda: timed_run("a", 1.0), "b": lambda: timed_run("b", 3.0)}, 3)

    assert "".join(order) == "abbaab"
    assert (found["a"].median, found["b"].median, found["a"].count) == (1.0, 3.0, 3)


def test_windows_are_all_shorter_prefixes_and_suffixes_and_all_single_rows_of_a_batch() -> None:
    assert [(window.start, window.stop) for window in windows(3)] == [
        *((0, 1), (0, 2)),
        *((1, 3), (2, 3)),
        *((0, 1), (1, 2), (2, 3)),
    ]


def test_different_windows_finds_an_operation_whose_rows_depend_on_other_rows() -> None:
    x = torch.randn(4, 3, generator=torch.Generator().manual_seed(1))
    independent = RowInvariance("independent", 4, lambda window: [x[window] * 2])
    assert different_windows(independent, windows(4)) == []
    dependent = RowInvariance("dependent", 4, lambda window: [x[window] + 1e-7 * x[window].sum()])
    assert len(different_windows(dependent, windows(4))) == len(windows(4))


def test_rows_with_nan_count_as_different() -> None:
    rows_of_nan = RowInvariance("nan", 2, lambda window: [torch.full((2, 1), torch.nan)[window]])
    assert different_windows(rows_of_nan, [slice(0, 1)]) == ["0:1"]


def test_a_dry_run_on_the_cpu_checks_every_kernel_and_prints_a_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = kernels.main(["--device", "cpu", "--results", str(tmp_path), "--seed", "7"])

    (path,) = tmp_path.glob("*/kernels.json")
    values = json.loads(path.read_text())
    assert code == 0, [case for case in values["cases"] if not case["passed"]]
    assert {"device", "commit", "started_at", "versions", "command", "gpu"} == set(values["machine"])
    assert set(values["machine"]["versions"]) == {"python", "torch", "triton", "transformers", "numpy"}
    assert values["seed"] == 7
    operations = {case["operation"] for case in values["cases"]}
    assert operations == {
        *("linear", "attention", "add_rms_norm", "rope_write", "swiglu", "swiglu_linear", "sample", "best tokens"),
        *("markov step", "medusa heads", "lora", "grow trees", "accept trees"),
        *("tree rows", "sample filtered", "rank candidates", "loss blend"),
        *("loss cross entropy", "loss kl", "loss total variation", "head and cross entropy", "head and kl"),
    }
    assert all(case["share_of_ceiling"] > 0 for case in values["cases"])
    assert all(claim["different"] == [] and claim["compared"] > 0 for claim in values["rows"])
    printed = capsys.readouterr().out
    assert printed.count("| yes |") == len(values["cases"])
    assert table.kernels(values) in printed
    assert values["machine"]["commit"] in table.folder_table(path.parent)


def test_a_failed_case_fails_the_command_but_other_cases_still_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> Case:
        raise RuntimeError("an illegal memory access")

    monkeypatch.setattr(kernels, "all_case_makers", lambda *_, **__: [broken, lambda: case_of(3), lambda: case_of(4)])
    monkeypatch.setattr(kernels, "row_invariance_results", lambda *_, **__: [])
    printed: list[str] = []
    monkeypatch.setattr("builtins.print", lambda text, **_: printed.append(str(text)))

    assert kernels.main(["--device", "cpu"]) == 1

    assert printed[-1].count("| NO |") == 2
    assert "RuntimeError: an illegal memory access" in printed[-1]
    assert printed[-1].count("| yes |") == 1


def test_the_table_says_that_cases_were_left_out_for_lack_of_time(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(kernels, "row_invariance_results", lambda *_, **__: [])
    assert kernels.main(["--device", "cpu", "--minutes", "-1"]) == 0
    assert "left out" in capsys.readouterr().out


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_the_command_fails_with_a_message_if_there_is_no_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    assert kernels.main([]) == 2
    assert "there is no NVIDIA GPU" in capsys.readouterr().err


@pytest.mark.parametrize("wrong", ["3", "2/2", "a/b", "1/"])
def test_a_wrong_value_of_the_option_warm_is_refused(wrong: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert kernels.part_of("1/4") == (1, 4)
    with pytest.raises(SystemExit):
        kernels.main(["--warm", wrong])
    assert "must be I/N" in capsys.readouterr().err


def test_the_results_folder_is_named_after_the_gpu() -> None:
    assert folder_name("NVIDIA H100 80GB HBM3") == "nvidia-h100-80gb-hbm3"
    assert folder_name("") == "unknown"
