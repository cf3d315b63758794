"""Simplifies the generated OpenAPI document."""

from typing import Any


def tidy(result: dict[str, Any], **_: Any) -> dict[str, Any]:
    """Hook of drf-spectacular: writes nullable members of requests as two types, and drops generated titles and ids."""
    for name, schema in result["components"]["schemas"].items():
        _drop(schema)
        if name.endswith(("Input", "Form")):
            schema["properties"] = {key: _without_null(value) for key, value in schema["properties"].items()}
        for member in schema.get("properties", {}).values():
            if "const" in member:
                member.pop("default", None)
    return result


def _without_null(member: dict[str, Any]) -> dict[str, Any]:
    """Replaces {"anyOf": [{"type": X}, {"type": "null"}]} by {"type": [X, "null"]}, and drops a default of null.

    A reference to another schema has no type of its own: its "anyOf" stays.
    """
    result = dict(member)
    if result.get("default", ...) is None:
        del result["default"]
    if "type" in result.get("anyOf", [{}])[0]:
        of_value, _ = result.pop("anyOf")
        result |= {**of_value, "type": [of_value["type"], "null"]}
    return result


def _drop(node: Any, *, names_members: bool = False) -> None:
    """Drops generated titles and ids from a schema and all schemas within it.

    Args: names_members: the keys of `node` are names of members; a member named `title` is kept.
    """
    if isinstance(node, list):
        for item in node:
            _drop(item)
    elif isinstance(node, dict):
        if not names_members:
            node.pop("title", None)
            node.pop("x-spec-enum-id", None)
        for key, value in node.items():
            _drop(value, names_members=key == "properties" and not names_members)
