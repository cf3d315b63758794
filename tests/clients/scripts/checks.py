"""Runs the checks of one client in the client's own environment. Only the standard library is used.

A check is a function whose name begins with `check_`; its docstring says what it exercises, and it fails by raising.
"""

import json
import os
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

BASE_URL = os.environ["OPENAI_BASE_URL"]
API_KEY = os.environ["OPENAI_API_KEY"]
MODEL = os.environ["SLIPSTREAM_ENDPOINT"]
TOKENIZER = os.environ["SLIPSTREAM_TOKENIZER"]  # a folder

QUESTION = "What is the capital of France?"
ANSWER = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]}, "sunny": {"type": "boolean"}},
    "required": ["city", "sunny"],
    "additionalProperties": False,
}
TOOL = {"name": "get_weather", "description": "Returns the weather in a city.", "parameters": ANSWER}


def assert_is_answer(value: Mapping[str, Any]) -> None:
    """Checks that the value matches the schema ANSWER."""
    assert set(value) == {"city", "sunny"}, value
    assert value["city"] in ("Paris", "Rome"), value
    assert isinstance(value["sunny"], bool), value


def raised(kind: type[Exception], function: Callable[[], Any]) -> Any:
    """Returns the exception of this kind that the function raises."""
    try:
        function()
    except kind as error:
        return error
    raise AssertionError(f"{kind.__name__} was not raised")


def run(names: Mapping[str, Any]) -> None:
    """Runs all checks among `names` and writes one JSON line per check to the file $CHECK_RESULTS.

    A line has two members: `error` is a traceback or null, and `value` is the value that the check returned.
    """
    checks: list[Callable[[], Any]] = [value for name, value in names.items() if name.startswith("check_")]
    with Path(os.environ["CHECK_RESULTS"]).open("w", encoding="utf-8") as results:
        for check in checks:
            value, error = None, None
            try:
                value = check()
            except Exception:  # a failed check is reported, and the next one runs
                error = traceback.format_exc()
            results.write(json.dumps({"check": check.__name__, "error": error, "value": value}) + "\n")
            results.flush()
