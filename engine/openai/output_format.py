"""Parses constraints on the answer's format: OpenAI's `response_format` and vLLM's `structured_outputs`.

A schema is always enforced, even with `strict: false`.
"""

import json
from collections.abc import Mapping
from typing import Any

from engine.fields import Fields, InvalidRequest, kind_of, reject_unknown
from engine.grammars.grammar import Grammar, GrammarKind
from engine.openai import without_effect
from engine.openai.nesting import check_plain

NAMES = frozenset({"response_format", "structured_outputs"})

_STRUCTURED = ("json", "regex", "choice", "grammar", "json_object")


def parse_output_format(fields: Fields) -> Grammar | None:
    """Returns the grammar of the answer, or None for free text. It is not compiled yet, and compiling it may fail.

    Raises: InvalidRequest
    """
    response_format, structured_outputs = _response_format(fields), _structured_outputs(fields)
    if response_format is not None and structured_outputs is not None:
        message = "response_format and structured_outputs both say what the answer must look like: send one"
        raise InvalidRequest(message, param="structured_outputs")
    return response_format or structured_outputs


def param_of(fields: Fields) -> str:
    """Returns the name of the parameter that sets the format of the answer."""
    return "response_format" if fields.get("structured_outputs") is None else "structured_outputs"


def make_grammar(kind: GrammarKind, source: str, *, param: str) -> Grammar:
    """Raises: InvalidRequest: the source is too long."""
    try:
        return Grammar(kind, source)
    except ValueError as error:
        raise InvalidRequest(f"{param}: {error}", param=param) from error


def _response_format(fields: Fields) -> Grammar | None:
    if fields.get("response_format") is None:
        return None
    response_format = Fields(fields.get("response_format"), path="response_format")
    kind = response_format.string("type", "")
    reject_unknown(response_format, known=("type", "json_schema") if kind == "json_schema" else ("type",))
    if kind == "text":
        return None
    if kind == "json_object":
        return Grammar(GrammarKind.JSON_OBJECT)
    if kind != "json_schema":
        raise InvalidRequest(
            f"response_format.type must be text, json_object or json_schema, got {kind[:40]!r}",
            param="response_format.type",
        )
    described = Fields(response_format.get("json_schema"), path="response_format.json_schema")
    reject_unknown(described, known={"schema"} | without_effect.JSON_SCHEMA)
    described.boolean("strict", False)
    return _schema(described.get("schema"), param="response_format.json_schema.schema")


def _structured_outputs(fields: Fields) -> Grammar | None:
    if fields.get("structured_outputs") is None:
        return None
    structured = Fields(fields.get("structured_outputs"), path="structured_outputs")
    reject_unknown(structured, known=_STRUCTURED)
    given = [name for name in _STRUCTURED if structured.get(name) not in (None, False)]
    if len(given) != 1:
        message = f"structured_outputs must have one of {', '.join(_STRUCTURED)}, got {len(given)}"
        raise InvalidRequest(message, param="structured_outputs")
    (name,) = given
    param = f"structured_outputs.{name}"
    if name == "json":
        return _schema(structured.get("json"), param=param)
    if name == "choice":
        return make_grammar(
            GrammarKind.CHOICE, json.dumps(_choices(structured.get("choice"), param=param)), param=param
        )
    if name == "json_object":
        structured.boolean("json_object", False)
        return Grammar(GrammarKind.JSON_OBJECT)
    kind = GrammarKind.REGEX if name == "regex" else GrammarKind.EBNF
    return make_grammar(kind, _text(structured, name), param=param)


def _schema(schema: Any, *, param: str) -> Grammar:
    """`schema`: an object, or, as in vLLM, its JSON text."""
    if isinstance(schema, str):
        try:
            schema = json.loads(schema)
        except (ValueError, RecursionError) as error:
            raise InvalidRequest(f"{param} must be JSON: {type(error).__name__}", param=param) from error
    if not isinstance(schema, Mapping):
        raise InvalidRequest(f"{param} must be a JSON schema, an object, got {kind_of(schema)}", param=param)
    check_plain(schema, param=param)
    return make_grammar(GrammarKind.JSON_SCHEMA, json.dumps(schema), param=param)


def _choices(choices: Any, *, param: str) -> list[str]:
    if not isinstance(choices, list) or not choices or not all(isinstance(text, str) and text for text in choices):
        raise InvalidRequest(f"{param} must be a list of strings, none empty, got {kind_of(choices)}", param=param)
    check_plain(choices, param=param)
    return choices


def _text(fields: Fields, name: str) -> str:
    text = fields.string(name, "")
    check_plain(text, param=f"{fields.path}.{name}")
    return text
