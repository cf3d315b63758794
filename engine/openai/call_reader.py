"""Incremental parser of one tool call: {"name": ..., "arguments": {...}}.

It parses only as much JSON as it needs to find where the values of the outermost object begin and end.
"""

import json
from collections.abc import Collection
from enum import Enum, auto

_SPACE = " \t\r\n"
_ARGUMENTS = ("arguments", "parameters")


class State(Enum):
    READING = auto()
    WHOLE = auto()
    BROKEN = auto()  # invalid JSON, or not a call of one of the tools


class CallReader:
    """The caller calls `feed` until `state` is not READING, and `take` after each call of `feed`."""

    def __init__(self, names: Collection[str]) -> None:
        """`names`: names of the tools that may be called."""
        self.state = State.READING
        self.name_taken = False
        self._names = names
        self._name: str | None = None
        self._arguments: list[str] = []  # text of the arguments that `take` has not returned yet
        self._has_arguments = False
        self._key: str | None = None  # key of the current value; None while a key is read
        self._item: list[str] = []  # characters of a key, or of a value other than the arguments
        self._depth = 0
        self._in_string = False
        self._escaped = False

    def feed(self, text: str) -> int:
        """Returns the number of characters read, which is less than len(text) only if the object ended or is broken."""
        for used, character in enumerate(text, start=1):
            self._feed(character)
            if self.state is not State.READING:
                return used
        return len(text)

    def take(self) -> tuple[str | None, str] | None:
        """Returns the name, but only the first time, and the new text of the arguments.

        Returns None before the name is known, and if there is no new text.
        """
        if self._name is None or (self.name_taken and not self._arguments):
            return None
        name = None if self.name_taken else self._name
        arguments = "".join(self._arguments)
        self._arguments.clear()
        self.name_taken = True
        return name, arguments

    def _feed(self, character: str) -> None:
        if self._depth == 0:
            if character == "{":
                self._depth = 1
            elif character not in _SPACE:
                self.state = State.BROKEN
        elif self._in_string:
            self._feed_string(character)
        elif character in "{[":
            self._depth += 1
            self._keep(character)
        elif character in "}]":
            self._close_bracket(character)
        elif character == '"':
            self._in_string = True
            self._keep(character)
        elif self._depth == 1 and character in ",:" + _SPACE:
            if character == ",":
                self._end_item()
        else:
            self._keep(character)

    def _feed_string(self, character: str) -> None:
        self._keep(character)
        if self._escaped:
            self._escaped = False
        elif character == "\\":
            self._escaped = True
        elif character == '"':
            self._in_string = False
            if self._depth == 1:
                self._end_item()

    def _close_bracket(self, character: str) -> None:
        self._depth -= 1
        if self._depth:
            self._keep(character)
        if self._depth <= 1:
            self._end_item()
        if self._depth == 0 and self.state is State.READING:
            self.state = State.WHOLE if character == "}" and self._name is not None else State.BROKEN
            if not self._has_arguments:
                self._arguments.append("{}")

    def _keep(self, character: str) -> None:
        if self._key in _ARGUMENTS:
            self._has_arguments = True
            self._arguments.append(character)
        else:
            self._item.append(character)

    def _end_item(self) -> None:
        """Processes the key or value that has just ended, if there is one."""
        item = "".join(self._item)
        self._item.clear()
        if self._key is not None:
            if self._key == "name":
                self._name = _text(item)
                if self._name not in self._names:
                    self._name, self.state = None, State.BROKEN
            self._key = None
        elif item:
            self._key = _text(item)
            if self._key is None:
                self.state = State.BROKEN


def _text(item: str) -> str | None:
    """Decodes a JSON string; returns None if `item` is no JSON string."""
    try:
        value = json.loads(item)
    except ValueError:
        return None
    return value if isinstance(value, str) else None
