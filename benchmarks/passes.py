"""Measures how long a forward pass takes, by the number of its rows and the length of their context.

    python -m benchmarks.passes --rows 1,8 --contexts 0,6000

The command prints a table with the milliseconds of a pass, logits included, and their ratio to the time with the first
number of rows. The rows are the last token of one sequence and a chain of draft nodes. Each time is the median of
--repeats passes, which alternate between the numbers of rows.
"""

import os
import statistics
import sys
import time
from collections.abc import Sequence

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # read when torch is imported

import torch

from benchmarks.workload import add_engine, arguments
from engine.cache.kv_cache import KVCache
from engine.errors import EngineError
from engine.load import load_model
from engine.models.base import Model
from engine.rows import RowBuilder
from examples.prepare_model import ModelNotFoundError, prepare


def pass_seconds(model: Model, row_counts: Sequence[int], context: int, *, repeats: int) -> list[float]:
    """Returns the median seconds of a pass for each number of rows. The keys and values are zeros."""
    num_slots = context + max(row_counts)
    cache = KVCache(
        model.config,
        num_slots=num_slots,
        max_sequences=1,
        max_seq_len=num_slots,
        dtype=model.dtype,
        device=model.device,
    )
    cache.write_tables([0] * num_slots, list(range(num_slots)), list(range(num_slots)))
    for num_rows in row_counts:
        _time_pass(model, cache, num_rows, context)
    times = [[_time_pass(model, cache, num_rows, context) for num_rows in row_counts] for _ in range(repeats)]
    return [statistics.median(column) for column in zip(*times, strict=True)]


@torch.inference_mode()
def _time_pass(model: Model, cache: KVCache, num_rows: int, context: int) -> float:
    builder = RowBuilder(cache)
    for row in range(num_rows):
        path = tuple(range(context + 1, context + 1 + row))
        slot = context + row
        builder.add_row(token=0, position=slot, slot=slot, table_row=0, prefix_len=context + 1, path=path)
    rows, _ = builder.build()
    started = time.perf_counter()
    model.logits(model.forward(rows, cache).final)
    return time.perf_counter() - started


def _counts(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def main(argv: Sequence[str] | None = None) -> int:
    parser = arguments("Measures the time of a pass by its rows and context.")
    parser.add_argument("--rows", type=_counts, default=[1, 2, 4, 8, 16], help="numbers of rows (default 1,2,4,8,16)")
    parser.add_argument(
        "--contexts",
        type=_counts,
        default=[0, 2000, 6000],
        help="numbers of tokens before the rows (default 0,2000,6000)",
    )
    parser.add_argument("--repeats", type=int, default=20, metavar="N", help="passes of each size (default 20)")
    add_engine(parser)
    args = parser.parse_args(argv)
    try:
        model = load_model(args.model or prepare(), dtype=args.dtype, weights=args.weights, device=args.device)
    except (EngineError, ModelNotFoundError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print("context", *(f"{num_rows} rows".rjust(16) for num_rows in args.rows))
    for context in args.contexts:
        seconds = pass_seconds(model, args.rows, context, repeats=args.repeats)
        cells = [f"{1000 * value:.2f} ms ({value / seconds[0]:.2f})".rjust(16) for value in seconds]
        print(str(context).rjust(7), *cells)
    return 0


if __name__ == "__main__":
    sys.exit(main())
