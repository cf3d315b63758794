"""Checks that kernels are correct and row-invariant, and measures their speed relative to the device's peak rates.

    python -m benchmarks.kernels --device cuda

    correctness     Each kernel is compared with a float64 reference on random inputs. Before the call, its outputs are
                    filled with NaN and placed between guard bytes (benchmarks/gpu/poison.py).
    row invariance  A pass over 128 rows must give each row the same bits as a pass over only the first n rows, only the
                    last n rows, or only that row. A row of a draft tree must have the same bits as in plain decoding of
                    its path.
    speed           Each kernel, and torch's implementation if there is one, is timed in a CUDA graph with a cold L2
                    cache. The time is compared with the lower bound that follows from the device's peak rates: the
                    bandwidth of a copy and the throughput of a matrix product. Both rates are measured before and
                    after the kernels, and the higher values count.

The command writes `kernels.json` to the folder <--results>/<GPU's name> and prints a table. The exit code is 1 if a
check fails. `--device cpu` is a dry run: everything runs with tiny sizes in Triton's interpreter, and a file is only
written if --results is given. `--compiled` measures nothing and needs no GPU: it prints registers, launches, programs
and instructions of the kernels compiled for an H100 (benchmarks/gpu/compiled.py).
"""

import argparse
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.gpu import graph_step_cases, head_cases, layer_cases, peak_rates, record, table
from benchmarks.gpu.case import Case, RowInvariance, check, different_windows, windows
from benchmarks.gpu.clock import Clock, clock_of, interleaved
from benchmarks.gpu.device import NoGpuError, RunDevice
from benchmarks.gpu.inputs import Inputs, Sizes
from benchmarks.gpu.peak_rates import PeakRates
from benchmarks.gpu.wide_product import wide_against_narrow
from kernels.losses import Loss

_REPEATS = 30
_NUM_COMPARED_ROWS = 128
_COMPARED_CONTEXT = 3000  # keys; attention then has short and long splits and a tail (kernels/cuda/attention.py)
MakeCase = Callable[[], Case]  # makes the inputs of the case only when it is called


def layer_case_makers(inputs: Inputs, model: str, row_counts: Sequence[int]) -> Iterator[MakeCase]:
    """Yields functions that make a layer's cases: its matrix products, and with 16 rows the operations between them."""
    sizes = Sizes.of(model)
    for name, (N, K) in layer_cases.weights_of(sizes).items():
        for M in row_counts:
            yield partial(layer_cases.product, inputs, f"{model} {name}", N, K, M)
    for make in (layer_cases.norm, layer_cases.rope, layer_cases.gated, layer_cases.gated_product):
        yield partial(make, inputs, model, sizes, 16)


def attention_case_makers(
    inputs: Inputs, model: str, contexts: Sequence[int], row_counts: Sequence[int]
) -> Iterator[MakeCase]:
    for context in contexts:
        for M in row_counts:
            yield partial(layer_cases.tree_attention, inputs, model, Sizes.of(model), context, M)


def head_case_makers(inputs: Inputs, model: str, row_counts: Sequence[int]) -> Iterator[MakeCase]:
    sizes, largest = Sizes.of(model), row_counts[-1]
    for M in row_counts:
        yield partial(head_cases.sampling, inputs, model, sizes, M)
        yield partial(head_cases.top_tokens, inputs, model, sizes, M, 8)
    yield partial(head_cases.markov, inputs, model, sizes, largest, min(256, sizes.hidden_size))
    yield partial(head_cases.medusa, inputs, model, sizes, largest, 4)
    yield partial(head_cases.adapters, inputs, model, sizes, 16, 16)


def graph_step_case_makers(inputs: Inputs, M: int, V: int, nodes: int) -> Iterator[MakeCase]:
    yield partial(graph_step_cases.laying_out, inputs, 3, nodes)
    yield partial(graph_step_cases.filtering, inputs, M, V)
    yield partial(graph_step_cases.ranking, inputs, M, 8)
    yield partial(graph_step_cases.blend, inputs, 2 * M, V)


def loss_case_makers(inputs: Inputs, model: str, num_rows: int) -> Iterator[MakeCase]:
    sizes = Sizes.of(model)
    for kind in Loss:
        yield partial(head_cases.loss, inputs, kind, num_rows, sizes.vocab_size)
    for kind in (Loss.CROSS_ENTROPY, Loss.KL):
        yield partial(head_cases.head_loss, inputs, kind, 2 * num_rows, sizes)


def all_case_makers(inputs: Inputs, *, dry_run: bool) -> list[MakeCase]:
    """Returns functions that make the cases. The most important come first, because cases are left out if the time runs
    out.
    """
    if dry_run:
        return [
            *layer_case_makers(inputs, "tiny", (1, 17)),
            partial(layer_cases.product, inputs, "tiny up", 64, 32, 3, layer_cases.ONE_BYTE[0]),
            *attention_case_makers(inputs, "tiny", (150,), (1, 5)),
            *head_case_makers(inputs, "tiny", (3,)),
            partial(head_cases.growing, inputs, 2, 3, 3, 9),
            partial(head_cases.accepting, inputs, 2, 9),
            *graph_step_case_makers(inputs, 5, 96, 9),
            *loss_case_makers(inputs, "tiny", 4),
        ]
    big, small = "llama-3.1-8b", "llama-3.2-1b"
    gate_up = layer_cases.weights_of(Sizes.of(big))["gate_up"]
    product = partial(layer_cases.product, inputs, f"{big} gate_up", *gate_up)
    return [
        *layer_case_makers(inputs, big, (1, 16, 128)),
        *attention_case_makers(inputs, big, (32_768, 8192, 2048, 512), (1, 16, 64, 128)),
        *head_case_makers(inputs, big, (1, 16)),
        *(partial(product, M, kind) for kind in layer_cases.ONE_BYTE for M in (1, 16)),
        *layer_case_makers(inputs, small, (1, 16)),
        partial(head_cases.growing, inputs, 8, 8, 8, 64),
        partial(head_cases.accepting, inputs, 8, 64),
        *graph_step_case_makers(inputs, 16, Sizes.of(big).vocab_size, 64),
        *(partial(product, M) for M in (2, 4, 8, 32, 64)),
        *loss_case_makers(inputs, big, 1024),
    ]


def examine(make: MakeCase, clock: Clock | None, repeats: int) -> dict[str, Any]:
    """Checks a case and, if a clock is given, times the kernel and the other implementations."""
    case = make()
    checked = check(case)
    result: dict[str, Any] = {"operation": case.operation, "shape": case.shape, "passed": checked.passed}
    result |= asdict(checked)
    if clock is not None:
        timed_runs = {name: clock.prepared(work) for name, work in {"ours": case.run, **case.rivals}.items()}
        result["seconds"] = {name: asdict(spread) for name, spread in interleaved(timed_runs, repeats).items()}
        result["work"] = asdict(case.work)
        result["_work"] = case.work  # used and removed by `with_share_of_ceiling`
    return result


def examined(
    case_makers: Sequence[MakeCase], clock: Clock | None, deadline: float, repeats: int = _REPEATS
) -> Iterator[dict[str, Any]]:
    for make in case_makers:
        if time.monotonic() > deadline:
            yield {"operation": "left out", "shape": f"{len(case_makers)} cases were planned", "passed": None}
            return
        try:
            yield examine(make, clock, repeats)
        except Exception as error:  # reports this case as failed and continues with the others
            traceback.print_exc()
            yield {"operation": "failed", "shape": f"{type(error).__name__}: {error}"[:300], "passed": False}


def row_invariance_results(inputs: Inputs, *, dry_run: bool) -> Iterator[dict[str, Any]]:
    model = "tiny" if dry_run else "llama-3.2-1b"
    count, context = (5, 140) if dry_run else (_NUM_COMPARED_ROWS, _COMPARED_CONTEXT)
    sizes = Sizes.of(model)
    claims: list[RowInvariance] = [
        *layer_cases.row_invariance_claims(inputs, sizes, count, context),
        *head_cases.row_invariance_claims(inputs, sizes, count),
    ]
    for claim in claims:
        compared = windows(claim.num_rows)
        different = different_windows(claim, compared)
        yield {"operation": claim.operation, "compared": len(compared), "different": different, "passed": not different}
    yield wide_against_narrow(inputs, *layer_cases.weights_of(sizes)["gate_up"], count)
    different = layer_cases.tree_against_plain(inputs, sizes, count, context)
    yield {
        "operation": "attention, a tree and plain decoding of its paths",
        "compared": count,
        "different": different,
        "passed": not different,
    }


def with_share_of_ceiling(result: dict[str, Any], best: PeakRates) -> dict[str, Any]:
    """Adds to a timed case which peak rate limits it (bandwidth or arithmetic), and the share of this rate reached."""
    work = result.pop("_work", None)
    if work is not None:
        result["bound"] = work.bound(best)
        result["share_of_ceiling"] = work.share(result["seconds"]["ours"]["median"], best)
    return result


def run(args: argparse.Namespace, run_device: RunDevice) -> dict[str, Any]:
    inputs, clock = Inputs(run_device, args.seed), clock_of(run_device.device)
    deadline = time.monotonic() + 60 * args.minutes
    case_makers = all_case_makers(inputs, dry_run=run_device.is_dry_run)
    if args.warm is not None:
        part, parts = args.warm
        return {"cases": list(examined(case_makers[part::parts], None, deadline)), "rows": []}
    rows = list(row_invariance_results(inputs, dry_run=run_device.is_dry_run))
    before = peak_rates.measure(clock, run_device)
    cases = list(examined(case_makers, clock, deadline, 1 if run_device.is_dry_run else _REPEATS))
    after = peak_rates.measure(clock, run_device)
    best = PeakRates(
        copy_bytes_per_second=max(before.copy_bytes_per_second, after.copy_bytes_per_second),
        flops_per_second=max(before.flops_per_second, after.flops_per_second),
    )
    return {
        "seed": args.seed,
        "ceilings": asdict(best) | {"before": asdict(before), "after": asdict(after)},
        "rows": rows,
        "cases": [with_share_of_ceiling(case, best) for case in cases],
    }


def part_of(value: str) -> tuple[int, int]:
    part, _, parts = value.partition("/")
    if not (part.isdigit() and parts.isdigit() and int(part) < int(parts)):
        raise argparse.ArgumentTypeError(f"must be I/N with integers 0 <= I < N, got {value!r}")
    return int(part), int(parts)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Checks and times every kernel.")
    device = "cuda (the default), or cpu for a dry run with tiny sizes"
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"), help=device)
    results = "folder for the results (default: benchmarks/results, or none with --device cpu)"
    parser.add_argument("--results", type=Path, metavar="DIR", help=results)
    seed = "seed of the random inputs (default: the current time)"
    parser.add_argument("--seed", type=int, default=time.time_ns() % 2**32, metavar="S", help=seed)
    minutes = "time for all cases; no case starts later (default 5)"
    parser.add_argument("--minutes", type=float, default=5.0, metavar="M", help=minutes)
    warm = "only fill the compiler's cache: compile and check every N-th case, beginning with case I"
    parser.add_argument("--warm", type=part_of, metavar="I/N", help=warm)
    compiled = "only print the registers, launches, programs and instructions of the kernels compiled for an H100"
    parser.add_argument("--compiled", action="store_true", help=compiled)
    args = parser.parse_args(argv)
    if args.compiled:  # in a process of its own, because this one has imported triton, perhaps with the interpreter
        environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
        return subprocess.run(
            [sys.executable, "-m", "benchmarks.gpu.compiled"], env=environment, check=False
        ).returncode
    try:
        run_device = RunDevice.of(args.device)
    except NoGpuError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    machine = record.Machine.now(run_device.device)
    values = run(args, run_device)
    folder = args.results or (None if run_device.is_dry_run else record.DEFAULT_FOLDER)
    if folder is not None and args.warm is None:
        record.write(folder, machine, "kernels", values)
    if args.warm is None:
        print(table.kernels(values))
    return int(any(found["passed"] is False for found in [*values["cases"], *values["rows"]]))


if __name__ == "__main__":
    sys.exit(main())
