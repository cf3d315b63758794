"""One call's JSON object, read as it is written: {"name": ..., "arguments": {...}}.

Only as much of JSON as it takes to tell where the values of the outermost object begin and end.
"""

import json
from collections.abc import Collection
from enum import Enum, auto

_SPACE = " \t\r\n"
_ARGUMENTS = ("arguments", "parameters")


class State(Enum):
    READING = auto()
    WHOLE = auto()
    BROKEN = auto()  # no JSON object, or not a call of these tools


class CallReader:
    """`feed` text until `state` is not READING; `take` after each."""

    def __init__(self, names: Collection[str]) -> None:
        """`names`: of the tools that can be called."""
        self.state = State.READING
        self.told = False  # the name was taken
        self._names = names
        self._name: str | None = None
        self._arguments: list[str] = []  # not yet taken
        self._has_arguments = False
        self._key: str | None = None  # of the value that is being read; None: a key is
        self._item: list[str] = []  # the key, or the value of another key than the arguments'
        self._depth = 0
        self._in_string = False
        self._escaped = False

    def feed(self, text: str) -> int:
        """Returns how many characters belong to the object; fewer than given only where it ended."""
        for used, character in enumerate(text, start=1):
            self._feed(character)
            if self.state is not State.READING:
                return used
        return len(text)

    def take(self) -> tuple[str | None, str] | None:
        """(name, the first time; arguments since the last time); None while there is no name, or nothing new."""
        if self._name is None or (self.told and not self._arguments):
            return None
        name = None if self.told else self._name
        arguments = "".join(self._arguments)
        self._arguments.clear()
        self.told = True
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
            self._leave(character)
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

    def _leave(self, character: str) -> None:
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
        """A key or a value is complete, unless it was before."""
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
    """A JSON string's text; None for what is no string."""
    try:
        value = json.loads(item)
    except ValueError:
        return None
    return value if isinstance(value, str) else None
