"""The pass that finds secrets and personal data in the texts of rows. `child` runs it.

The report has the lines of the findings, never their values. The pass can also write a copy of the file with
placeholders in place of the findings: `<EMAIL_1>` replaces the first address of the file, wherever it occurs, and
`<EMAIL_2>` replaces the second one.
"""

import hashlib
import json
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, NoReturn

from control.data.recognisers.credentials import SECRETS
from control.data.recognisers.personal import PERSONAL
from control.workflows.prompt_files.child import FileRefused, serve
from control.workflows.prompt_files.lines import Line, Readable, read_lines, without_mark
from control.workflows.prompt_files.rows import RowError, content_of, parse_object

RECOGNISERS = {**SECRETS, **PERSONAL}
MAX_LINES = 10  # a report has the first lines of each kind
_NOT_TEXT = frozenset({"role", "type", "url", "method", "model"})  # members whose values are keywords of the API


def scan_rows(source: Readable, *, path: str | None = None) -> dict[str, Any]:
    """Counts the findings. If `path` is given, writes the rows with placeholders to it; copies rows without findings.

    Returns: see `_Scan.report`.
    Raises: FileRefused: `path` is given, and a line cannot be read, so it cannot be written.
    """
    scan = _Scan()
    with ExitStack() as stack:
        target = None if path is None else stack.enter_context(open(path, "wb"))
        for line in read_lines(source):
            content = line.content
            try:
                content = scan.read(line)
            except RowError as error:
                if target is not None:
                    _refuse(line, error)
                scan.num_unread_lines += 1
            if target is not None:
                target.write((content or b"") + b"\n")
    return scan.report()


def _refuse(line: Line, error: RowError) -> NoReturn:
    raise FileRefused(error.code, f"line {line.number}: {error.message}") from error


@dataclass(slots=True)
class _Found:
    num_found: int = 0
    num_rows: int = 0
    lines: list[int] = field(default_factory=list)


class _Scan:
    """The findings in the lines so far. Only hashes of values are kept; they determine the placeholders' numbers."""

    def __init__(self) -> None:
        self.num_unread_lines = 0
        self._num_rows = 0
        self._found: dict[str, _Found] = {}
        self._numbers: dict[bytes, int] = {}
        self._num_values: Counter[str] = Counter()
        self._in_row: Counter[str] = Counter()  # number of findings in the current row, by kind

    def read(self, line: Line) -> bytes:
        """Returns the line with placeholders. Raises: RowError: it is too long, or no JSON object."""
        content = content_of(without_mark(line))
        if not content.strip():
            return content
        row = parse_object(content)
        self._in_row.clear()
        redacted = self._redacted(row)
        if not self._in_row:
            return content
        self._num_rows += 1
        for kind, num_found in self._in_row.items():
            found = self._found.setdefault(kind, _Found())
            found.num_found += num_found
            found.num_rows += 1
            if len(found.lines) < MAX_LINES:
                found.lines.append(line.number)
        return _as_line(redacted)

    def report(self) -> dict[str, Any]:
        """Returns `num_rows` with findings, `num_found`, `num_unread_lines`, and these figures for each of `kinds`."""
        kinds = [
            {"kind": kind, "num_found": one.num_found, "num_rows": one.num_rows, "lines": one.lines}
            for kind, one in sorted(self._found.items())
        ]
        return {
            "num_rows": self._num_rows,
            "num_found": sum(one.num_found for one in self._found.values()),
            "num_unread_lines": self.num_unread_lines,
            "kinds": kinds,
        }

    def _redacted(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._redacted_text(value)
        if isinstance(value, list):
            return [self._redacted(item) for item in value]
        if isinstance(value, dict):
            return {name: self._redacted_member(name, item) for name, item in value.items()}
        return value

    def _redacted_member(self, name: str, item: Any) -> Any:
        """Keeps keywords of the API, which are strings.

        An object or a list of the same name, such as the parameter `url` of a tool, is redacted.
        """
        return item if name in _NOT_TEXT and isinstance(item, str) else self._redacted(item)

    def _redacted_text(self, text: str) -> str:
        encoded = text.encode()
        pieces: list[bytes] = []
        copied = 0  # the bytes before this position are in `pieces`
        for begin, end, kind in _spans(encoded):
            self._in_row[kind] += 1
            pieces += (encoded[copied:begin], self._placeholder(kind, encoded[begin:end]))
            copied = end
        return b"".join((*pieces, encoded[copied:])).decode() if pieces else text

    def _placeholder(self, kind: str, value: bytes) -> bytes:
        key = hashlib.blake2b(value, digest_size=16, person=kind.encode()[:16]).digest()
        number = self._numbers.get(key)
        if number is None:
            self._num_values[kind] += 1
            number = self._numbers[key] = self._num_values[kind]
        return f"<{kind.upper()}_{number}>".encode()


def _spans(text: bytes) -> Iterator[tuple[int, int, str]]:
    """Yields the start, end and kind of each finding, in order.

    Overlapping findings are merged. The merged finding has the kind of the finding that begins first or, if several
    begin there, of the longest of these.
    """
    found = [
        (begin, -end, kind)
        for kind, recognisers in RECOGNISERS.items()
        for one in recognisers
        for begin, end in one.find(text)
    ]
    last: tuple[int, int, str] | None = None
    for begin, negative_end, kind in sorted(found):
        if last is None or begin >= last[1]:
            if last is not None:
                yield last
            last = begin, -negative_end, kind
        else:
            last = last[0], max(last[1], -negative_end), last[2]
    if last is not None:
        yield last


def _as_line(row: dict[str, Any]) -> bytes:
    """Raises: RowError: a number is too large."""
    try:
        return json.dumps(row, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    except ValueError as error:
        raise RowError("invalid_json_line", "This line has a number that is too large") from error


if __name__ == "__main__":
    sys.exit(serve({scan_rows.__name__: scan_rows}))
