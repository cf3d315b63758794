"""What the generator leaves behind."""

from typing import Any


def tidy(result: dict[str, Any], **_: Any) -> dict[str, Any]:
    """Unknown members of a body are errors, so bodies are closed; titles and ids that say nothing are dropped."""
    for name, schema in result["components"]["schemas"].items():
        if name.endswith("Input"):
            schema["additionalProperties"] = False
            schema.pop("description", None)  # that of the class which all of them share
        _drop(schema)
    return result


def _drop(node: Any, *, names_members: bool = False) -> None:
    """`names_members`: the keys are a customer's words, and one of them may well be `title`."""
    if isinstance(node, list):
        for item in node:
            _drop(item)
    elif isinstance(node, dict):
        if not names_members:
            node.pop("title", None)
            node.pop("x-spec-enum-id", None)
        for key, value in node.items():
            _drop(value, names_members=key == "properties" and not names_members)
