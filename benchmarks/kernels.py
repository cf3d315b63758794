"""Checks that kernels are correct and row-invariant, and measures their speed relative to the device's ceilings.

    python -m benchmarks.kernels --device cuda

    correctness     Each kernel is compared with a float64 reference on random inputs. Before the call, its outputs are
                    filled with NaN and placed between guard bytes (benchmarks/gpu/poison.py).
    row invariance  The rows of a pass over 128 rows must have the same bits in a pass over only the first n rows, over
                    only the last n rows, and over a single row. The rows of a draft tree must have the same bits as in
                    plain decoding of their paths.
    speed           Each kernel, and torch's implementation if there is one, is timed in a CUDA graph with a cold L2
                    cache. The time is compared with a lower bound (benchmarks/gpu/ceilings.py). Its ceilings are
                    measured before and after the kernels, and the higher values are used.

Writes `kernels.json` to the folder --results/<GPU's name> and prints a table. The exit code is 1 if a check fails.
`--device cpu` rehearses the whole run with tiny sizes in Triton's interpreter, and writes a file only with --results.
"""

import argparse
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.gpu import ceilings, graph_step_cases, head_cases, layer_cases, record, table
from benchmarks.gpu.case import Case, RowInvariance, check, different_windows, windows
from benchmarks.gpu.ceilings import Ceilings
from benchmarks.gpu.clock import Clock, clock_of, interleaved
from benchmarks.gpu.device import NoGpuError, RunDevice
from benchmarks.gpu.inputs import Inputs, Sizes
from kernels.losses import Loss

_REPEATS = 30
_NUM_COMPARED_ROWS = 128
_COMPARED_CONTEXT = 3000  # keys; attention then has short and long splits and a tail (kernels/cuda/attention.py)
MakeCase = Callable[[], Case]  # makes a case; its inputs use no memory before the call


def layer_case_makers(inputs: Inputs, model: str, row_counts: Sequence[int]) -> Iterator[MakeCase]:
    """Yields cases for the matrix products of a layer, and for the operations between them with 16 rows."""
    sizes = Sizes.of(model)
    for name, (N, K) in layer_cases.weights_of(sizes).items():
        for M in row_counts:
            yield partial(layer_cases.product, inputs, f"{model} {name}", N, K, M)
    for make in (layer_cases.norm, layer_cases.rope, layer_cases.gated):
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


def all_case_makers(inputs: Inputs, *, rehearsal: bool) -> list[MakeCase]:
    """Returns functions that make the cases. The most important are first, as the time may be too short for all."""
    if rehearsal:
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
    found = check(case)
    result: dict[str, Any] = {"operation": case.operation, "shape": case.shape, "passed": found.passed}
    result |= asdict(found)
    if clock is not None:
        arms = {name: clock.prepared(work) for name, work in {"ours": case.run, **case.rivals}.items()}
        result["seconds"] = {name: asdict(spread) for name, spread in interleaved(arms, repeats).items()}
        result["work"] = asdict(case.work)
        result["_work"] = case.work  # for `with_shares`, which removes it
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
        except Exception as error:  # reported as a failed case, so that the other cases still run
            traceback.print_exc()
            yield {"operation": "failed", "shape": f"{type(error).__name__}: {error}"[:300], "passed": False}


def row_invariance_results(inputs: Inputs, *, rehearsal: bool) -> Iterator[dict[str, Any]]:
    model = "tiny" if rehearsal else "llama-3.2-1b"
    count, context = (5, 140) if rehearsal else (_NUM_COMPARED_ROWS, _COMPARED_CONTEXT)
    sizes = Sizes.of(model)
    claims: list[RowInvariance] = [
        *layer_cases.row_claims(inputs, sizes, count, context),
        *head_cases.row_claims(inputs, sizes, count),
    ]
    for claim in claims:
        compared = windows(claim.num_rows)
        different = different_windows(claim, compared)
        yield {"operation": claim.operation, "compared": len(compared), "different": different, "passed": not different}
    different = layer_cases.tree_against_plain(inputs, sizes, count, context)
    yield {
        "operation": "attention, a tree and plain decoding of its paths",
        "compared": count,
        "different": different,
        "passed": not different,
    }


def with_shares(result: dict[str, Any], best: Ceilings) -> dict[str, Any]:
    """Adds to a timed case the ceiling that bounds it, and the share of this ceiling that it reaches."""
    work = result.pop("_work", None)
    if work is not None:
        result["bound"] = work.bound(best)
        result["share_of_ceiling"] = work.share(result["seconds"]["ours"]["median"], best)
    return result


def run(args: argparse.Namespace, run_device: RunDevice) -> dict[str, Any]:
    inputs, clock = Inputs(run_device, args.seed), clock_of(run_device.device)
    deadline = time.monotonic() + 60 * args.minutes
    case_makers = all_case_makers(inputs, rehearsal=run_device.is_rehearsal)
    if args.warm is not None:
        part, parts = args.warm
        return {"cases": list(examined(case_makers[part::parts], None, deadline)), "rows": []}
    rows = list(row_invariance_results(inputs, rehearsal=run_device.is_rehearsal))
    before = ceilings.measure(clock, run_device)
    cases = list(examined(case_makers, clock, deadline, 1 if run_device.is_rehearsal else _REPEATS))
    after = ceilings.measure(clock, run_device)
    best = Ceilings(
        copy_bytes_per_second=max(before.copy_bytes_per_second, after.copy_bytes_per_second),
        flops_per_second=max(before.flops_per_second, after.flops_per_second),
    )
    return {
        "seed": args.seed,
        "ceilings": asdict(best) | {"before": asdict(before), "after": asdict(after)},
        "rows": rows,
        "cases": [with_shares(case, best) for case in cases],
    }


def part_of(value: str) -> tuple[int, int]:
    part, _, parts = value.partition("/")
    if not (part.isdigit() and parts.isdigit() and int(part) < int(parts)):
        raise argparse.ArgumentTypeError(f"must be I/N with I below N, got {value!r}")
    return int(part), int(parts)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Checks and times every kernel.")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"), help="cpu: a rehearsal at tiny sizes")
    parser.add_argument("--results", type=Path, metavar="DIR", help="default on a GPU: benchmarks/results")
    parser.add_argument("--seed", type=int, default=time.time_ns() % 2**32, metavar="S", help="default: the clock")
    parser.add_argument("--minutes", type=float, default=5.0, metavar="M", help="start no case after this time")
    parser.add_argument(
        "--warm",
        type=part_of,
        metavar="I/N",
        help="only compile and check every N-th case, from case I on, to fill the compiler's cache",
    )
    args = parser.parse_args(argv)
    try:
        run_device = RunDevice.of(args.device)
    except NoGpuError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    machine = record.Machine.now(run_device.device)
    values = run(args, run_device)
    folder = args.results or (None if run_device.is_rehearsal else record.DEFAULT_FOLDER)
    if folder is not None and args.warm is None:
        record.write(folder, machine, "kernels", values)
    if args.warm is None:
        print(table.kernels(values))
    return int(any(found["passed"] is False for found in [*values["cases"], *values["rows"]]))


if __name__ == "__main__":
    sys.exit(main())
