"""The passes over files of datasets. Each checks the rows, and some write valid rows to a file, one per line.

`prompt_files.child` runs them, so they import no large packages. All but `first_rows` return `findings`, as JSON.
"""

import json
import sys
from contextlib import ExitStack, suppress
from typing import Any, BinaryIO

from control.workflows.datasets.formats import CHAT, Example
from control.workflows.datasets.splits import LabelSplit, Shares
from control.workflows.datasets.validation import Findings, examine
from control.workflows.prompt_files.child import serve
from control.workflows.prompt_files.duplicate_passes import duplicates_within
from control.workflows.prompt_files.lines import Line, Readable
from control.workflows.prompt_files.rows import Row, RowError, normalised_line
from control.workflows.prompt_files.sketches import Sketches


def all_rows(source: Readable) -> dict[str, Any]:
    """Checks all rows and writes no file. The result also has the `duplicates`."""
    sketches = Sketches()
    findings = examine(source, on_example=lambda example, line: sketches.add(line.number, example.body))
    return _result(findings, duplicates=duplicates_within(sketches))


def labelled_rows(source: Readable) -> dict[str, Any]:
    """Checks that all rows are chats whose last message is an answer, and writes no file."""
    return _result(examine(source, check=_check_label))


def _check_label(example: Example) -> None:
    if example.endpoint != CHAT or "messages" not in example.body:
        raise RowError("unsupported_format", "Supervised fine-tuning needs rows with `messages`")
    if not example.answer and not example.calls_tools:
        message = "The last message must be the label: an assistant's message that is not empty"
        raise RowError("missing_label", message, "messages")


def prompt_rows(source: Readable, *, path: str) -> dict[str, Any]:
    """Writes the prompts of all valid rows as rows of a batch."""
    with open(path, "wb") as file:

        def write(example: Example, line: Line) -> None:
            file.write(_prompt_row(example, example.custom_id or f"row-{line.number}"))

        return _result(examine(source, on_example=write))


def pilot_rows(source: Readable, *, path: str, every: int) -> dict[str, Any]:
    """Writes the prompts of every n-th row as rows of a batch. The result also has the `endpoint` of the batch."""
    num_seen, endpoint = 0, ""
    with open(path, "wb") as file:

        def write(example: Example, line: Line) -> None:
            nonlocal num_seen, endpoint
            num_seen += 1
            # Rows for another endpoint than the first row's are skipped, because a batch has only one endpoint.
            if (num_seen - 1) % every == 0 and example.endpoint == (endpoint or example.endpoint):
                endpoint = example.endpoint
                file.write(_prompt_row(example, f"row-{line.number}"))

        findings = examine(source, on_example=write)
    return _result(findings, endpoint=endpoint)


def sample_rows(source: Readable, *, path: str, every: int) -> dict[str, Any]:
    """Writes every n-th row for `rendering`.

    The result also has `num_bytes`, the bytes of all valid rows, and the `duplicates`.
    """
    num_seen = num_bytes = 0
    sketches = Sketches()
    with open(path, "wb") as file:

        def write(example: Example, line: Line) -> None:
            nonlocal num_seen, num_bytes
            num_seen += 1
            num_bytes += line.size_bytes
            sketches.add(line.number, example.body)
            if (num_seen - 1) % every == 0:
                file.write(_rendering_row(example, line))

        findings = examine(source, on_example=write)
    return _result(findings, num_bytes=num_bytes, duplicates=duplicates_within(sketches))


class _LimitReached(Exception):
    """Enough rows are read: the rest of the file need not be read."""


def first_rows(source: Readable, *, path: str, limit: int) -> dict[str, Any]:
    """Writes the first valid rows for `rendering`. Returns: `rows`, which lists the `line` and `custom_id` of each."""
    rows: list[dict[str, Any]] = []
    with open(path, "wb") as file, suppress(_LimitReached):

        def write(example: Example, line: Line) -> None:
            rows.append({"line": line.number, "custom_id": example.custom_id})
            file.write(_rendering_row(example, line))
            if len(rows) == limit:
                raise _LimitReached

        examine(source, on_example=write)
    return {"rows": rows}


def split_rows(
    source: Readable, *, folder: str, seed: int, shares: dict[str, float], label: str | None
) -> dict[str, Any]:
    """Copies each row to the file of its split in `folder`. The file's name is the split's position in `splits`.

    Args:
        seed, shares: see `splits.Shares`.
        label: the member of the rows whose value is the name of the split; None: the shares decide.

    Returns: the findings, and in `splits` the names of the splits, in order.
    Raises: FileRefused: a row has no usable label, or there are too many labels.
    """
    split_of = Shares(seed, shares) if label is None else LabelSplit(label)
    files: dict[str, BinaryIO] = {}
    with ExitStack() as stack:

        def add(name: str) -> None:
            files[name] = stack.enter_context(open(f"{folder}/{len(files)}", "wb"))

        def write(example: Example, line: Line) -> None:
            name = split_of(example, line)
            if name is None:
                return
            if name not in files:
                add(name)
            files[name].write((line.content or b"") + b"\n")

        for name in sorted(shares):
            add(name)  # creates the file even if the split will have no rows
        findings = examine(source, on_example=write)
    return _result(findings, splits=list(files))


def _result(findings: Findings, **more: Any) -> dict[str, Any]:
    return {"findings": findings.as_json(), **more}


def _prompt_row(example: Example, custom_id: str) -> bytes:
    row = Row(custom_id=custom_id, is_id_coerced=False, model="", body=dict(example.body))
    return normalised_line(row, url=example.endpoint, model="")


def _rendering_row(example: Example, line: Line) -> bytes:
    values = {"endpoint": example.endpoint, "body": example.body, "answer": example.answer}
    return json.dumps({**values, "size_bytes": line.size_bytes}).encode() + b"\n"


if __name__ == "__main__":
    passes = (all_rows, labelled_rows, prompt_rows, pilot_rows, sample_rows, first_rows, split_rows)
    sys.exit(serve({one.__name__: one for one in passes}))
