"""Prints objects as tables of fields for people, or as JSON for programs. Progress and errors go to stderr."""

import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from rich.console import Console, RenderableType
from rich.markup import escape
from rich.table import Column, Table

WIDTH_WITHOUT_TERMINAL = 1000


class Output:
    def __init__(self, *, is_json: bool) -> None:
        self.is_json = is_json
        self.console = Console(highlight=False)
        if not self.console.is_terminal:
            self.console.width = WIDTH_WITHOUT_TERMINAL  # one line per row, for grep and awk
        self.errors = Console(stderr=True, highlight=False)

    def one(self, value: Any) -> None:
        if self.is_json:
            self.json(_plain(value))
            return
        self.console.print(_fields(_plain(value)))

    def many(self, values: Iterable[Any], columns: Sequence[str]) -> None:
        """Prints a table with these columns. With --json, prints all fields of each object on a line, as it arrives."""
        if self.is_json:
            for value in values:
                self.json(_plain(value))
            return
        table = _table(columns)
        for value in values:
            plain = _plain(value)
            table.add_row(*(_text(name, plain.get(name)) for name in columns))
        self.console.print(table)

    def line(self, value: Any) -> None:
        self.json(_plain(value))

    def json(self, value: object) -> None:
        self.console.out(json.dumps(value, ensure_ascii=False), highlight=False)

    def text(self, text: str, *, end: str = "\n") -> None:
        """Prints text without interpreting it as markup."""
        self.console.out(text, end=end, highlight=False)

    def note(self, message: str) -> None:
        self.errors.out(message, highlight=False)

    def error(self, message: str, **fields: object) -> None:
        """Prints an error. With --json, prints an object, so that programs can read `fields`."""
        if self.is_json:
            self.errors.out(json.dumps({"error": {"message": message, **fields}}, ensure_ascii=False), highlight=False)
        else:
            self.errors.print(f"[red]Error:[/] {escape(message)}", soft_wrap=True)

    def advice(self, message: str) -> None:
        """Prints a message for people. With --json, prints nothing."""
        if not self.is_json:
            self.note(message)


def _table(columns: Sequence[str]) -> Table:
    """Returns an empty table. A narrow terminal wraps values instead of truncating them, so that ids can be copied."""
    return Table(*(Column(name, overflow="fold") for name in columns), box=None, pad_edge=False)


def _plain(value: Any) -> dict[str, Any]:
    """Returns an object's fields without internal ones (`repr=False`), such as the client in a `PipelineRun`."""
    if isinstance(value, dict):
        return value
    names = [field.name for field in dataclasses.fields(value) if field.repr]
    return {name: _inner(getattr(value, name)) for name in names}


def _inner(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return _plain(value)
    return [_inner(item) for item in value] if isinstance(value, (list, tuple)) else value


def _fields(values: Mapping[str, Any]) -> Table:
    """Returns a table with one field per line, without empty fields."""
    table = Table(box=None, show_header=False, pad_edge=False)
    for name, field in values.items():
        if field not in (None, "", [], {}):
            table.add_row(name, _rendered(name, field))
    return table


def _rendered(name: str, value: object) -> RenderableType:
    """Formats a value. An object becomes a table without its nested objects. (`--json` shows everything.)"""
    if isinstance(value, dict) and not _is_single_value(value):
        return _fields({key: field for key, field in value.items() if not _is_nested(field)})
    if isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
        columns = [key for key in value[0] if any(item.get(key) not in (None, [], {}) for item in value)]
        flat = [key for key in columns if not any(_is_nested(item.get(key)) for item in value)]
        table = _table(flat)
        for item in value:
            table.add_row(*(_text(key, item.get(key)) for key in flat))
        return table
    return _text(name, value)


def _is_nested(value: object) -> bool:
    if isinstance(value, dict):
        return not _is_single_value(value)
    return isinstance(value, list) and any(isinstance(item, dict) for item in value)


def _is_single_value(value: Mapping[str, Any]) -> bool:
    """Whether the object is an amount of money or a `Progress`, which are shown as one value."""
    return value.keys() in ({"value", "currency"}, {"done", "total", "unit"})


def _text(name: str, value: object) -> str:
    match value:
        case None:
            return ""
        case bool():
            return "yes" if value else "no"
        case int() if name.endswith("_at") or name in ("start_time", "end_time", "created"):
            return f"{datetime.fromtimestamp(value, UTC):%Y-%m-%d %H:%M:%SZ}"
        case float():
            return f"{value:.5g}"
        case {"value": amount, "currency": currency}:
            return f"{amount:.6g} {currency}"
        case {"done": done, "total": total, "unit": unit}:
            return f"{done} / {total} {unit}" if total else ""
        case list() if not _is_nested(value):
            return escape(", ".join(_text(name, item) for item in value))
        case dict() | list():
            return escape(json.dumps(value, ensure_ascii=False))
    return escape(str(value))
