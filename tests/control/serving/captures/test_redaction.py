"""Personal data is replaced before a request is stored."""

import json
import time
from typing import Any

import pytest
from django.test import Client
from hypothesis import given
from hypothesis import strategies as st

from control.data.recognisers.recogniser import InvalidPattern
from control.serving.captures.redaction import REPLACEMENT, Redaction
from control.serving.captures.services import MAX_BODY_BYTES, capture_set, request_capture
from control.serving.deployments.models import Deployment
from tests.control.serving.captures.test_captures import capture_request, rows_of
from tests.control.serving.captures.test_captures import deployment as deployment

ALL_KINDS = ("email", "ip_address", "credit_card")


@pytest.mark.parametrize(
    ("kind", "personal"),
    [
        ("email", "ann.lee+news@mail.example.com"),
        ("email", "ANN@EXAMPLE.ORG"),
        ("ip_address", "192.168.0.17"),
        ("ip_address", "2001:db8::8a2e:370:7334"),
        ("ip_address", "::1"),
        ("credit_card", "4111 1111 1111 1111"),
        ("credit_card", "5500-0000-0000-0004"),
        ("credit_card", "378282246310005"),
    ],
)
def test_personal_data_of_each_chosen_kind_is_replaced(kind: str, personal: str) -> None:
    redaction = Redaction([kind], [])
    for before, after in (("", ""), ("I am ", "."), ("[", "]:8080 and 12"), ("«", "»")):
        assert redaction.apply(before + personal + after) == before + REPLACEMENT + after


@pytest.mark.parametrize(
    "text",
    [
        "at 12:30",
        "a@b",
        "1234 5678 9012 3456",
        "300.1.1.1",
        "std::vector",
        "a :: b",
        "f(::g)",
        "pi = 3.14159",
        "1/3 of 4:5",
    ],
)
def test_text_that_only_resembles_personal_data_is_not_changed(text: str) -> None:
    assert Redaction(ALL_KINDS, []).apply(text) == text


_TEXTS = st.text(st.sampled_from("ab@.:1 -"))
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | _TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXTS, inner, max_size=3),
    max_leaves=12,
)


@given(_JSON)
def test_every_text_of_a_body_is_redacted_and_its_shape_is_kept(body: Any) -> None:
    redacted = Redaction(["email"], [r"ab+"]).apply(body)

    assert _shape(redacted) == _shape(body)
    assert not any("ab" in text for text in _texts(redacted))


def _shape(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _shape(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_shape(item) for item in value]
    return "text" if isinstance(value, str) else value


def _texts(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [text for item in value.values() for text in _texts(item)]
    if isinstance(value, list):
        return [text for item in value for text in _texts(item)]
    return [value] if isinstance(value, str) else []


def test_a_captured_request_has_no_personal_data(client: Client, deployment: Deployment) -> None:
    path = f"/v1/deployments/{deployment.pk}/capture"
    body = {"hours": 24, "redact": ["email"], "redact_patterns": [r"CUST-\d+"]}
    made = client.post(path, body, content_type="application/json").json()
    assert (made["redact"], made["redact_patterns"]) == (["email"], [r"CUST-\d+"])
    assert capture_request(deployment, "I am CUST-1234, mail me at ann@example.com", tools=[{"type": "function"}])

    rows = rows_of(client.post(f"{path}/file").json()["id"])

    assert rows[0]["body"]["messages"] == [{"role": "user", "content": f"I am {REPLACEMENT}, mail me at {REPLACEMENT}"}]


def test_requests_with_token_ids_are_not_captured_if_texts_are_redacted(deployment: Deployment) -> None:
    def capture(prompt: object) -> bool:
        return request_capture(deployment_id=deployment.pk, endpoint="/v1/completions", body={"prompt": prompt})

    capture_set(deployment=deployment, hours=1)
    assert capture([1, 2])
    capture_set(deployment=deployment, hours=1, redact=["email"])
    assert not capture([1, 2])
    assert not capture([[1], [2]])
    assert capture(["one", "two"])


@pytest.mark.parametrize("pattern", ["(a", "x*", r"(\w)\1", "(a|ab|abc){0,300}z"])
def test_a_pattern_that_is_invalid_empty_or_complex_is_refused(
    client: Client, deployment: Deployment, pattern: str
) -> None:
    path = f"/v1/deployments/{deployment.pk}/capture"
    body = {"hours": 24, "redact_patterns": [pattern]}

    response = client.post(path, body, content_type="application/json")

    assert response.status_code == 400
    error = response.json()["error"]
    assert (error["code"], error["param"]) == ("invalid_pattern", "redact_patterns")
    assert client.get(path).status_code == 404


def test_the_time_of_a_redaction_is_linear_in_the_text() -> None:
    """For this pattern, a backtracking regex engine would need a number of steps that is exponential in the text."""
    redaction = Redaction([], [r"(x+x+)+y"])

    started = time.process_time()
    redaction.apply("x" * MAX_BODY_BYTES)

    assert time.process_time() - started < 5.0


def test_patterns_that_are_too_complex_together_are_refused() -> None:
    one = r"[a-z]{100}!"
    Redaction([], [one])
    with pytest.raises(InvalidPattern, match="too complex"):
        Redaction([], [one] * 4)


def test_roles_and_types_of_messages_and_tools_are_not_redacted() -> None:
    redaction = Redaction([], ["user|function"])
    body = {"messages": [{"role": "user", "content": "user"}], "tools": [{"type": "function"}]}
    redacted = redaction.apply(body)
    assert json.dumps(redacted) == json.dumps(
        {"messages": [{"role": "user", "content": REPLACEMENT}], "tools": [{"type": "function"}]}
    )


def test_texts_in_an_object_that_has_the_name_of_a_keyword_are_redacted() -> None:
    parameters = {"properties": {"type": {"type": "string", "description": "such as the user's"}}}

    redacted = Redaction((), ["user"]).apply({"tools": [{"type": "function", "parameters": parameters}]})

    described = redacted["tools"][0]["parameters"]["properties"]["type"]
    assert described == {"type": "string", "description": f"such as the {REPLACEMENT}'s"}
