"""`response_format` (OpenAI) and `structured_outputs` (vLLM) are parsed into grammars."""

import json
from typing import Any

import pytest

from engine.fields import Fields, InvalidRequest
from engine.grammars.grammar import Grammar, GrammarKind
from engine.openai.output_format import parse_output_format

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}


def json_schema(schema: Any, **more: Any) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema} | more}}


def structured(**options: Any) -> dict[str, Any]:
    return {"structured_outputs": options}


@pytest.mark.parametrize(
    ("body", "grammar"),
    [
        ({}, None),
        ({"response_format": None, "structured_outputs": None}, None),
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": {"type": "json_object"}}, Grammar(GrammarKind.JSON_OBJECT)),
        (json_schema(SCHEMA, strict=True), Grammar(GrammarKind.JSON_SCHEMA, json.dumps(SCHEMA))),
        (json_schema(SCHEMA), Grammar(GrammarKind.JSON_SCHEMA, json.dumps(SCHEMA))),
        (structured(json=SCHEMA), Grammar(GrammarKind.JSON_SCHEMA, json.dumps(SCHEMA))),
        (structured(json=json.dumps(SCHEMA)), Grammar(GrammarKind.JSON_SCHEMA, json.dumps(SCHEMA))),
        (structured(json_object=True), Grammar(GrammarKind.JSON_OBJECT)),
        (structured(regex="a+"), Grammar(GrammarKind.REGEX, "a+")),
        (structured(grammar='root ::= "a"'), Grammar(GrammarKind.EBNF, 'root ::= "a"')),
        (structured(choice=["yes", "no"]), Grammar(GrammarKind.CHOICE, '["yes", "no"]')),
    ],
)
def test_output_formats_are_parsed_into_grammars(body: dict[str, Any], grammar: Grammar | None) -> None:
    assert parse_output_format(Fields(body)) == grammar


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"response_format": "json"}, "response_format"),
        ({"response_format": {}}, "response_format.type"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        (json_schema(None), "response_format.json_schema.schema"),
        (json_schema([1]), "response_format.json_schema.schema"),
        (json_schema(SCHEMA, strict=1), "response_format.json_schema.strict"),
        (json_schema(SCHEMA, stict=True), "response_format.json_schema.stict"),
        (json_schema({"title": "x" * 70_000}), "response_format.json_schema.schema"),
        (structured(), "structured_outputs"),
        (structured(regex="a", choice=["b"]), "structured_outputs"),
        (structured(guided="a"), "structured_outputs.guided"),
        (structured(json="{"), "structured_outputs.json"),
        (structured(json="[" * 3000), "structured_outputs.json"),
        (structured(regex=5), "structured_outputs.regex"),
        (structured(regex=""), "structured_outputs.regex"),
        (structured(choice="yes"), "structured_outputs.choice"),
        (structured(choice=["yes", ""]), "structured_outputs.choice"),
        (structured(json_object="yes"), "structured_outputs.json_object"),
        ({"response_format": {"type": "json_object"}} | structured(regex="a"), "structured_outputs"),
    ],
)
def test_the_error_for_an_invalid_format_names_its_parameter(body: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_output_format(Fields(body))
    assert caught.value.param == param
