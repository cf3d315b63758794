"""Validation of request bodies: accepted values, and the error messages for other values."""

from typing import Annotated, Any

import pytest
from pydantic import Field

from control.core.api.errors import ApiError
from control.core.api.requests import parse_request
from control.core.api.schemas import IntRange, Number, OneOf, RequestModel, Text


class Nested(RequestModel, strict=True):
    repeats: Annotated[int, IntRange(1)] | None = None


class Body(RequestModel):
    name: Annotated[str, Text(5)]
    count: Annotated[int, IntRange(1, 9)] = 1
    share: Annotated[Number, Field(le=1)] | None = None
    kind: Annotated[str, OneOf(["a", "b"])] = "a"
    nested: Nested = Nested()


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"name": " x "}, {"name": "x"}),
        ({"name": 5}, {"name": "5"}),
        ({"count": "5"}, {"count": 5}),
        ({"count": 5.0}, {"count": 5}),
        ({"share": "0.5"}, {"share": 0.5}),
        ({"share": None}, {"share": None}),
    ],
)
def test_values_of_another_type_are_converted_if_no_information_is_lost(
    given: dict[str, Any], expected: dict[str, Any]
) -> None:
    body = parse_request(Body, {"name": "x", **given})

    assert body.model_dump(include=set(expected)) == expected


@pytest.mark.parametrize(
    ("given", "param", "code", "words"),
    [  # `...` stands for a field that is not sent
        ({"name": ...}, "name", "missing_required_parameter", "is required"),
        ({"name": None}, "name", "missing_required_parameter", "may not be null"),
        ({"name": ..., "nome": "x"}, "nome", "unknown_parameter", "Unknown parameter: 'nome'"),
        ({"name": "  "}, "name", "invalid_value", "must not be empty"),
        ({"name": True}, "name", "invalid_value", "valid string, got True"),
        ({"name": "123456"}, "name", "invalid_value", "at most 5 characters"),
        ({"count": True}, "count", "invalid_value", "valid integer, got True"),
        ({"count": 10}, "count", "invalid_value", "less than or equal to 9, got 10"),
        ({"share": "nan"}, "share", "invalid_value", "finite"),
        ({"kind": "c"}, "kind", "invalid_value", "must be one of a, b, got 'c'"),
        ({"nested": {"repeats": "1"}}, "nested.repeats", "invalid_value", "valid integer"),
        ({"nested": {"repeat": 1}}, "nested.repeat", "unknown_parameter", "nested.repeat"),
    ],
)
def test_an_error_names_the_field_and_the_reason(given: dict[str, Any], param: str, code: str, words: str) -> None:
    body = {name: value for name, value in ({"name": "x"} | given).items() if value is not ...}

    with pytest.raises(ApiError) as caught:
        parse_request(Body, body)

    assert (caught.value.status, caught.value.code, caught.value.param) == (400, code, param)
    assert words in caught.value.message


def test_a_body_that_is_not_an_object_is_refused() -> None:
    with pytest.raises(ApiError, match="must be a JSON object, got list"):
        parse_request(Body, [])


@pytest.mark.parametrize(("part", "param"), [({"repeats": 0}, "method.nested.repeats"), ("x", "method.nested")])
def test_an_error_in_a_part_of_a_body_names_the_whole_path(part: Any, param: str) -> None:
    with pytest.raises(ApiError, match=param) as caught:
        parse_request(Nested, part, under="method.nested")

    assert (caught.value.code, caught.value.param) == ("invalid_value", param)
