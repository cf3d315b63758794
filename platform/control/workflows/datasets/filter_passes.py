"""The passes that write some of the rows of a dataset to a file, unchanged and in order. `child` runs them."""

import heapq
import json
import os
import sys
from collections.abc import Set
from pathlib import Path
from typing import Any

from control.workflows.datasets.filters import Conditions, RowFilter, point_of
from control.workflows.datasets.formats import Example
from control.workflows.datasets.validation import examine
from control.workflows.prompt_files.child import FileRefused, serve
from control.workflows.prompt_files.lines import Line, Readable
from control.workflows.prompt_files.sketches import Sketches, twins_within


def filter_rows(
    source: Readable,
    *,
    path: str,
    conditions: dict[str, Any],
    seed: int,
    rows: int | None = None,
    tokens_path: str | None = None,
    drop_duplicates: str | None = None,
) -> dict[str, Any]:
    """Writes the rows that pass the conditions.

    Args:
        rows: the maximum number of rows to write. If more rows pass, the seed decides which are written.
        drop_duplicates: `exact`: of rows with equal prompts, only the first is written; `near`: the same for rows with
            equal or similar prompts.
        tokens_path: the number of tokens of each row, as JSON; None: no condition needs it.

    Returns: `num_rows`, the number of written rows.
    """
    num_tokens = [] if tokens_path is None else json.loads(Path(tokens_path).read_text())
    chosen = RowFilter(Conditions(**conditions), seed=seed, num_tokens=num_tokens)
    points: list[int] = []
    sketches = Sketches()
    with open(path, "wb") as file:

        def write(example: Example, line: Line) -> None:
            if chosen.passes(example, line):
                points.append(point_of(example.body, seed))
                if drop_duplicates is not None:
                    sketches.add(line.number, example.body)
                file.write((line.content or b"") + b"\n")

        examine(source, on_example=write)
    left = set(range(len(points)))
    if drop_duplicates is not None:
        exact, near = twins_within(sketches)
        left -= exact.keys() if drop_duplicates == "exact" else exact.keys() | near.keys()
    if rows is not None and rows < len(left):
        left = set(heapq.nsmallest(rows, left, key=lambda position: (points[position], position)))
    if len(left) < len(points):
        _keep(path, left)
    return {"num_rows": len(left)}


def sampled_rows(source: Readable, *, path: str, rows: int, seed: int) -> dict[str, Any]:
    """Writes `rows` rows, which the seed selects. Raises: FileRefused: the file has fewer rows."""
    found = filter_rows(source, path=path, conditions={}, seed=seed, rows=rows)
    if found["num_rows"] < rows:
        raise FileRefused("too_few_rows", f"has {found['num_rows']} rows, and the mix needs {rows} of them")
    return found


def _keep(path: str, kept: Set[int]) -> None:
    """Removes all lines from the file except those at the positions `kept`."""
    with open(path, "rb") as all_lines, open(f"{path}.kept", "wb") as file:
        file.writelines(line for position, line in enumerate(all_lines) if position in kept)
    os.replace(f"{path}.kept", path)


if __name__ == "__main__":
    sys.exit(serve({one.__name__: one for one in (filter_rows, sampled_rows)}))
