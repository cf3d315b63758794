"""Adds to each operation an example of its request and response, and the codes of its errors.

`python -m tests.control.record_examples` records the examples from real requests and responses, and writes the files.
"""

import json
from collections import defaultdict
from functools import lru_cache
from pathlib import Path
from typing import Any

CONTROL = Path(__file__).resolve().parents[2]
FILE_NAME = "examples.json"  # in the folder of the operation's view


@lru_cache(maxsize=1)
def recorded_examples() -> dict[str, dict[str, Any]]:
    """Maps the id of each operation to `request`, `response` and `errors`, which is a list of [status, code]."""
    examples: dict[str, dict[str, Any]] = {}
    for path in sorted(CONTROL.glob(f"*/*/{FILE_NAME}")):
        examples |= json.loads(path.read_text())
    return examples


def add_examples(result: dict[str, Any], **_: Any) -> dict[str, Any]:
    """Adds the recorded examples and errors to the document, as a hook of drf-spectacular."""
    for methods in result["paths"].values():
        for operation in methods.values():
            recorded = recorded_examples().get(operation["operationId"], {})
            if "request" in recorded:
                _set_example(operation["requestBody"], recorded["request"])
            if "response" in recorded:
                success = min(status for status in operation["responses"] if status.startswith("2"))
                _set_example(operation["responses"][success], recorded["response"])
            _add_errors(operation["responses"], recorded.get("errors", []))
    return result


def _set_example(described: dict[str, Any], example: Any) -> None:
    content = described.get("content", {})
    if "application/json" in content:
        content["application/json"]["example"] = example


def _add_errors(responses: dict[str, Any], errors: list[tuple[int, str]]) -> None:
    codes: defaultdict[int, list[str]] = defaultdict(list)
    for status, code in errors:
        codes[status].append(code)
    content = responses["4XX"]["content"]
    for status, names in codes.items():
        responses[str(status)] = {"content": content, "description": ", ".join(f"`{name}`" for name in names)}
