"""The passes that find duplicates in files of batch rows. `child` runs them.

All return reports: {"exact": {"num_rows", "examples"}, "near": ...}. An example has the `line` of a prompt and the
`other_line` of the first prompt that is like it. A prompt that has an exact duplicate is not counted as a near one.
"""

import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from control.workflows.prompt_files.child import serve
from control.workflows.prompt_files.lines import Readable
from control.workflows.prompt_files.passes import rows_of
from control.workflows.prompt_files.rows import RowError, parse_object
from control.workflows.prompt_files.sketches import Sketches, Twins, twins_across, twins_within

MAX_EXAMPLES = 10


def sketch_prompts(source: Readable, *, path: str | None = None) -> dict[str, Any]:
    """Reports the duplicates within the file, and writes the sketches of its prompts to `path`."""
    sketches = Sketches()
    for line, body in _bodies(source):
        sketches.add(line, body)
    if path is not None:
        sketches.save(path)
    return duplicates_within(sketches)


def compare_prompts(source: Readable, *, others_path: str, lines_path: str, digests_path: str) -> dict[str, Any]:
    """Reports the prompts of the file that duplicate other prompts, whose sketches are in `others_path`.

    Writes the line numbers of the reported prompts to `lines_path`, and the keys of all prompts to `digests_path`, for
    `normalise`.
    """
    sketches, others = Sketches(), Sketches.load(others_path)
    with open(digests_path, "w", encoding="ascii") as digests:
        for line, body in _bodies(source):
            digests.write(sketches.add(line, body).hex() + "\n")
    return _compared(sketches, others, lines_path)


def compare_split(source: Readable, *, held_out_lines_path: str, lines_path: str) -> dict[str, Any]:
    """Reports the prompts of the file that duplicate prompts on the lines that `held_out_lines_path` lists.

    Writes the line numbers of the reported prompts to `lines_path`.
    """
    held_out_lines = frozenset(json.loads(Path(held_out_lines_path).read_text()))
    rest, held_out = Sketches(), Sketches()
    for line, body in _bodies(source):
        (held_out if line in held_out_lines else rest).add(line, body)
    return _compared(rest, held_out, lines_path)


def duplicates_within(sketches: Sketches) -> dict[str, Any]:
    exact, near = twins_within(sketches)
    lines = sketches.lines
    return {"exact": _counted(exact, lines, lines), "near": _counted(near, lines, lines)}


def _compared(sketches: Sketches, others: Sketches, lines_path: str) -> dict[str, Any]:
    exact, near = twins_across(sketches, others)
    lines, other_lines = sketches.lines, others.lines
    Path(lines_path).write_text(json.dumps(sorted(lines[position] for position in {*exact, *near})))
    report = {"exact": _counted(exact, lines, other_lines), "near": _counted(near, lines, other_lines)}
    return {**report, "num_prompts": len(sketches)}


def _counted(twins: Twins, lines: list[int], other_lines: list[int]) -> dict[str, Any]:
    first = sorted(twins.items())[:MAX_EXAMPLES]
    examples = [{"line": lines[position], "other_line": other_lines[other]} for position, other in first]
    return {"num_rows": len(twins), "examples": examples}


def _bodies(source: Readable) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yields the line and the body of each row that has one. The batch reports the bad rows later."""
    for line in rows_of(source):
        with suppress(RowError):
            body = parse_object(line.content or b"").get("body")
            if isinstance(body, dict):
                yield line.number, body


if __name__ == "__main__":
    sys.exit(serve({one.__name__: one for one in (sketch_prompts, compare_prompts, compare_split)}))
