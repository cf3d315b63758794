"""Checks that kernels are correct and row-invariant, and measures their speed relative to the device's ceilings.

    python -m benchmarks.kernels --device cuda

    correctness     Each kernel is compared with a float64 reference on random inputs. Its outputs are filled with NaN
                    before, and lie between guard bytes (benchmarks/gpu/poison.py).
    row invariance  Rows of a pass over 128 rows must have the same bits as in passes over only the first n, the last n
                    or a single row, and rows of a draft tree the same bits as plain decoding of their paths.
    speed           Each kernel, and the library's implementation if there is one, is timed in a CUDA graph with a cold
                    L2 cache. The time is reported relative to the bandwidth of a copy and the rate of a matrix product,
                    which are measured before and after; the better value counts.

Writes `kernels.json` to --results, below a folder of the GPU's name, and prints a table. The exit code is 1 if a check
fails. `--device cpu` rehearses all of it at tiny sizes in Triton's interpreter, and writes only with --results.
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
from benchmarks.gpu.case import Case, Rows, check, different_windows, windows
from benchmarks.gpu.ceilings import Ceilings
from benchmarks.gpu.clock import Clock, clock_of, interleaved
from benchmarks.gpu.device import NoGpuError, Place
from benchmarks.gpu.inputs import Inputs, Sizes
from kernels.losses import Loss

_REPEATS = 30
_CLAIMED_ROWS = 128
_CLAIMED_CONTEXT = 3000  # short and long splits, and a tail
Make = Callable[[], Case]


def layer_makes(inputs: Inputs, model: str, row_counts: Sequence[int]) -> Iterator[Make]:
    """Cases for a model's matrix products, and for the operations between them at 16 rows."""
    sizes = Sizes.of(model)
    for name, (N, K) in layer_cases.weights_of(sizes).items():
        for M in row_counts:
            yield partial(layer_cases.product, inputs, f"{model} {name}", N, K, M)
    for make in (layer_cases.norm, layer_cases.rope, layer_cases.gated):
        yield partial(make, inputs, model, sizes, 16)


def attention_makes(inputs: Inputs, model: str, contexts: Sequence[int], row_counts: Sequence[int]) -> Iterator[Make]:
    for context in contexts:
        for M in row_counts:
            yield partial(layer_cases.tree_attention, inputs, model, Sizes.of(model), context, M)


def head_makes(inputs: Inputs, model: str, row_counts: Sequence[int]) -> Iterator[Make]:
    sizes, most = Sizes.of(model), row_counts[-1]
    for M in row_counts:
        yield partial(head_cases.sampling, inputs, model, sizes, M)
        yield partial(head_cases.top_tokens, inputs, model, sizes, M, 8)
    yield partial(head_cases.markov, inputs, model, sizes, most, min(256, sizes.hidden_size))
    yield partial(head_cases.medusa, inputs, model, sizes, most, 4)
    yield partial(head_cases.adapters, inputs, model, sizes, 16, 16)


def graph_step_makes(inputs: Inputs, M: int, V: int, nodes: int) -> Iterator[Make]:
    yield partial(graph_step_cases.laying_out, inputs, 3, nodes)
    yield partial(graph_step_cases.filtering, inputs, M, V)
    yield partial(graph_step_cases.ranking, inputs, M, 8)
    yield partial(graph_step_cases.blend, inputs, 2 * M, V)


def loss_makes(inputs: Inputs, model: str, num_rows: int) -> Iterator[Make]:
    sizes = Sizes.of(model)
    for kind in Loss:
        yield partial(head_cases.loss, inputs, kind, num_rows, sizes.vocab_size)
    for kind in (Loss.CROSS_ENTROPY, Loss.KL):
        yield partial(head_cases.head_loss, inputs, kind, 2 * num_rows, sizes)


def all_makes(inputs: Inputs, *, rehearsal: bool) -> list[Make]:
    """Returns functions that make the cases, the most important first, because the time may run out."""
    if rehearsal:
        return [
            *layer_makes(inputs, "tiny", (1, 17)),
            partial(layer_cases.product, inputs, "tiny up", 64, 32, 3, layer_cases.ONE_BYTE[0]),
            *attention_makes(inputs, "tiny", (150,), (1, 5)),
            *head_makes(inputs, "tiny", (3,)),
            partial(head_cases.growing, inputs, 2, 3, 3, 9),
            partial(head_cases.accepting, inputs, 2, 9),
            *graph_step_makes(inputs, 5, 96, 9),
            *loss_makes(inputs, "tiny", 4),
        ]
    big, small = "llama-3.1-8b", "llama-3.2-1b"
    gate_up = layer_cases.weights_of(Sizes.of(big))["gate_up"]
    product = partial(layer_cases.product, inputs, f"{big} gate_up", *gate_up)
    return [
        *layer_makes(inputs, big, (1, 16, 128)),
        *attention_makes(inputs, big, (32_768, 8192, 2048, 512), (1, 16, 64, 128)),
        *head_makes(inputs, big, (1, 16)),
        *(partial(product, M, kind) for kind in layer_cases.ONE_BYTE for M in (1, 16)),
        *layer_makes(inputs, small, (1, 16)),
        partial(head_cases.growing, inputs, 8, 8, 8, 64),
        partial(head_cases.accepting, inputs, 8, 64),
        *graph_step_makes(inputs, 16, Sizes.of(big).vocab_size, 64),
        *(partial(product, M) for M in (2, 4, 8, 32, 64)),
        *loss_makes(inputs, big, 1024),
    ]


def examine(make: Make, clock: Clock | None, repeats: int) -> dict[str, Any]:
    """Checks a case and, if a clock is given, times it and its rivals."""
    case = make()
    found = check(case)
    result: dict[str, Any] = {"operation": case.operation, "shape": case.shape, "passed": found.passed}
    result |= asdict(found)
    if clock is not None:
        arms = {name: clock.prepared(work) for name, work in {"ours": case.run, **case.rivals}.items()}
        result["seconds"] = {name: asdict(spread) for name, spread in interleaved(arms, repeats).items()}
        result["work"] = asdict(case.work)
        result["_work"] = case.work
    return result


def examined(
    makes: Sequence[Make], clock: Clock | None, deadline: float, repeats: int = _REPEATS
) -> Iterator[dict[str, Any]]:
    for make in makes:
        if time.monotonic() > deadline:
            yield {"operation": "left out", "shape": f"{len(makes)} cases were planned", "passed": None}
            return
        try:
            yield examine(make, clock, repeats)
        except Exception as error:  # other cases may still work; this one is reported as failed
            traceback.print_exc()
            yield {"operation": "failed", "shape": f"{type(error).__name__}: {error}"[:300], "passed": False}


def rows_claimed(inputs: Inputs, *, rehearsal: bool) -> Iterator[dict[str, Any]]:
    model = "tiny" if rehearsal else "llama-3.2-1b"
    count, context = (5, 140) if rehearsal else (_CLAIMED_ROWS, _CLAIMED_CONTEXT)
    sizes = Sizes.of(model)
    claims: list[Rows] = [
        *layer_cases.row_claims(inputs, sizes, count, context),
        *head_cases.row_claims(inputs, sizes, count),
    ]
    for claim in claims:
        taken = windows(claim.num_rows)
        different = different_windows(claim, taken)
        yield {"operation": claim.operation, "compared": len(taken), "different": different, "passed": not different}
    different = layer_cases.tree_against_plain(inputs, sizes, count, context)
    yield {
        "operation": "attention, a tree and plain decoding of its paths",
        "compared": count,
        "different": different,
        "passed": not different,
    }


def with_shares(result: dict[str, Any], best: Ceilings) -> dict[str, Any]:
    work = result.pop("_work", None)
    if work is not None:
        result["bound"] = work.bound(best)
        result["share_of_ceiling"] = work.share(result["seconds"]["ours"]["median"], best)
    return result


def run(args: argparse.Namespace, place: Place) -> dict[str, Any]:
    inputs, clock = Inputs(place, args.seed), clock_of(place.device)
    deadline = time.monotonic() + 60 * args.minutes
    makes = all_makes(inputs, rehearsal=place.is_rehearsal)
    if args.warm is not None:
        part, parts = args.warm
        return {"cases": list(examined(makes[part::parts], None, deadline)), "rows": []}
    rows = list(rows_claimed(inputs, rehearsal=place.is_rehearsal))
    before = ceilings.measure(clock, place)
    cases = list(examined(makes, clock, deadline, 1 if place.is_rehearsal else _REPEATS))
    after = ceilings.measure(clock, place)
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
        "--warm", type=part_of, metavar="I/N", help="only compile and check every N-th case, for the compiler's cache"
    )
    args = parser.parse_args(argv)
    try:
        place = Place.of(args.device)
    except NoGpuError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    machine = record.Machine.now(place.device)
    values = run(args, place)
    folder = args.results or (None if place.is_rehearsal else record.DEFAULT_FOLDER)
    if folder is not None and args.warm is None:
        record.write(folder, machine, "kernels", values)
    if args.warm is None:
        print(table.kernels(values))
    return int(any(found["passed"] is False for found in [*values["cases"], *values["rows"]]))


if __name__ == "__main__":
    sys.exit(main())
