"""Accepts only JSON Schemas that xgrammar enforces in full, so that every complete answer is valid.

xgrammar ignores keywords that it cannot enforce, such as `uniqueItems`, `not` and any keyword next to `anyOf`; schemas
with such keywords are refused. In two respects the grammar is narrower than the schema: properties are written in the
order of the schema, and unlisted properties are only allowed if `additionalProperties` is present and allows them.
"""

import json
from typing import Any

MAX_DEPTH = 64

_ANNOTATIONS = frozenset(
    {"title", "description", "default", "examples", "example", "deprecated", "readOnly", "writeOnly", "format"}
    | {"$schema", "$id", "$comment", "$defs", "definitions"}
)
# The assertions that apply to each type.
_OF_TYPE: dict[str, frozenset[str]] = {
    "object": frozenset({"properties", "required", "additionalProperties"}),
    "array": frozenset({"items", "prefixItems", "minItems", "maxItems"}),
    "string": frozenset({"pattern", "minLength", "maxLength"}),
    "number": frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}),
    "integer": frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}),
    "boolean": frozenset(),
    "null": frozenset(),
}
_PYTHON_TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "number": (int, float),
    "integer": (int,),
    "boolean": (bool,),
    "null": (type(None),),
}
# Keywords that contain schemas: an object of schemas, a list of schemas, or one schema.
_NAMED_CHILDREN = frozenset({"properties", "$defs", "definitions"})
_LISTED_CHILDREN = frozenset({"anyOf", "allOf", "prefixItems"})
_CHILDREN = frozenset({"items", "additionalProperties"})
_CHARACTER = "[ !#-\\[\\]-\ud7ff\ue000-\U0010ffff]"  # characters that a JSON string may contain unescaped
# Keywords of JSON Schema that affect validity; other names are annotations.
_ASSERTIONS = frozenset().union(*_OF_TYPE.values()) | {
    *("$ref", "$dynamicRef", "const", "enum", "anyOf", "oneOf", "allOf", "not", "if", "then", "else", "type"),
    *("multipleOf", "uniqueItems", "contains", "minContains", "maxContains", "unevaluatedItems", "additionalItems"),
    *("patternProperties", "propertyNames", "minProperties", "maxProperties", "unevaluatedProperties"),
    *("dependentRequired", "dependentSchemas", "dependencies"),
}


def load_json(source: str) -> Any:
    """Parses JSON. Raises: ValueError: invalid JSON; the message is a predicate without a subject: "must be JSON"."""
    try:
        return json.loads(source)
    except RecursionError:
        raise ValueError("is too deeply nested") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"must be JSON: {error}") from error


def enforceable(schema: Any, *, path: str = "#", depth: int = 0) -> Any:
    """Rewrites a schema with keywords that xgrammar enforces in full.

    Raises: ValueError: a keyword can't be enforced; the message is a predicate that names the keyword and its path.
    """
    if depth > MAX_DEPTH:
        raise ValueError(f"is nested more than {MAX_DEPTH} levels deep")
    if isinstance(schema, bool):
        return schema
    if not isinstance(schema, dict):
        raise ValueError(f"must have an object or a boolean at {path}, got {type(schema).__name__}")
    present = {name for name in schema if name in _ASSERTIONS}
    allowed = _check_form(schema, present, path)
    if unsupported := sorted(present - allowed):
        context = f"beside {sorted(present & allowed)}" if present & allowed else "without a type"
        raise ValueError(f"has {unsupported} at {path} {context}, which is not supported")
    result = _with_length_as_pattern(schema)
    if implied := _implied_type(present):
        result["type"] = implied
    for name in _NAMED_CHILDREN & schema.keys():
        if isinstance(schema[name], dict):
            children = schema[name].items()
            result[name] = {k: enforceable(v, path=f"{path}/{name}/{k}", depth=depth + 1) for k, v in children}
    for name in _LISTED_CHILDREN & schema.keys():
        if isinstance(schema[name], list):
            children = enumerate(schema[name])
            result[name] = [enforceable(v, path=f"{path}/{name}/{i}", depth=depth + 1) for i, v in children]
    for name in _CHILDREN & schema.keys():
        result[name] = enforceable(schema[name], path=f"{path}/{name}", depth=depth + 1)
    return result


def _check_form(schema: dict[str, Any], present: set[str], path: str) -> frozenset[str]:
    """Returns the assertions allowed in a schema that is a reference, a list of values or a union, or has a type."""
    if "$ref" in present:
        if not str(schema["$ref"]).startswith("#"):
            raise ValueError(f"has a $ref at {path} that leaves the schema, got {str(schema['$ref'])[:80]!r}")
        return frozenset({"$ref"})
    for name in ("const", "enum"):
        if name in present:
            _check_values(schema, [schema[name]] if name == "const" else schema[name], path)
            return frozenset({name, "type"})
    if "anyOf" in present:
        return frozenset({"anyOf"})
    if "allOf" in present:
        if not isinstance(schema["allOf"], list) or len(schema["allOf"]) != 1:
            raise ValueError(f"must have exactly one schema in the allOf at {path}")
        return frozenset({"allOf"})
    types = schema.get("type") or _implied_type(present)
    names = [types] if isinstance(types, str) else types
    if not isinstance(names, list) or not all(isinstance(name, str) and name in _OF_TYPE for name in names):
        raise ValueError(f"must have a type at {path} out of {sorted(_OF_TYPE)}, got {str(types)[:80]!r}")
    _check_string(schema, path)
    _check_required(schema, path)
    # Keywords of other types are allowed too, because they have no effect.
    of_all_types = frozenset().union(*_OF_TYPE.values()) if names else frozenset()
    return frozenset({"type"}).union(of_all_types)


def _implied_type(present: set[str]) -> list[str]:
    """Returns the first type that has all these keywords. A schema without `type` then allows only this type."""
    fitting = [name for name, keywords in _OF_TYPE.items() if present <= keywords]
    return fitting[:1] if present else []


def _check_string(schema: dict[str, Any], path: str) -> None:
    groups = (("pattern",), ("format",), ("minLength", "maxLength"))
    given = ["/".join(group) for group in groups if schema.keys() & set(group)]
    if len(given) > 1:
        raise ValueError(f"has {' and '.join(given)} at {path}, of which only one is supported")


def _check_required(schema: dict[str, Any], path: str) -> None:
    required, properties = schema.get("required"), schema.get("properties", {})
    if not isinstance(required, list) or not isinstance(properties, dict):
        return
    if missing := [name for name in required if name not in properties]:
        raise ValueError(f"requires names at {path} that are not in its properties: {str(missing)[:80]}")


def _check_values(schema: dict[str, Any], values: Any, path: str) -> None:
    types = schema.get("type")
    if types is None or not isinstance(values, list):
        return
    names = types if isinstance(types, list) else [types]
    fitting = tuple(kind for name in names for kind in _PYTHON_TYPES.get(str(name), ()))
    for value in values:
        if not isinstance(value, fitting) or (isinstance(value, bool) and bool not in fitting):
            raise ValueError(f"names a value at {path} that is not of type {types}, got {str(value)[:80]!r}")


def _with_length_as_pattern(schema: dict[str, Any]) -> dict[str, Any]:
    """Replaces length limits by a pattern, because with length limits xgrammar allows control characters in strings."""
    result = dict(schema)
    min_length, max_length = result.pop("minLength", None), result.pop("maxLength", None)
    if min_length is None and max_length is None:
        return result
    if not all(length is None or (type(length) is int and length >= 0) for length in (min_length, max_length)):
        raise ValueError(f"must have lengths of at least 0, got minLength {min_length} and maxLength {max_length}")
    if max_length is not None and (min_length or 0) > max_length:
        raise ValueError(f"has a minLength of {min_length} above its maxLength of {max_length}")
    result["pattern"] = f"^{_CHARACTER}{{{min_length or 0},{'' if max_length is None else max_length}}}$"
    return result
