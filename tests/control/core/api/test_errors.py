"""Every error response has the structure of OpenAI's errors, and shows no internal details."""

from typing import Any

import pytest
from django.test import Client

from control.core.api.errors import ApiError, error_response
from tests.control.factories import make_key

ERROR_KEYS = {"message", "type", "param", "code"}


def error_of(response: Any) -> dict[str, Any]:
    body = response.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == ERROR_KEYS
    return dict(body["error"])


@pytest.mark.parametrize("path", ["/v1/nothing", "/v1/files/a/b/c", "/nothing", "/v1/"])
def test_an_unknown_route_has_status_404_and_openais_error_format(client: Client, path: str) -> None:
    response = client.get(path)

    assert response.status_code == 404
    assert error_of(response)["code"] == "unknown_url"


@pytest.mark.parametrize("path", ["/v1/files/a%00", "/v1/models/%00", "/v1/files?after=%00"])
def test_a_zero_byte_in_an_id_causes_status_404(client: Client, path: str) -> None:
    assert client.get(path).status_code == 404


@pytest.mark.parametrize(
    ("method", "path"), [("PUT", "/v1/files"), ("DELETE", "/v1/models"), ("POST", "/v1/files/file-1")]
)
def test_a_wrong_method_has_status_405_and_the_allowed_methods(client: Client, method: str, path: str) -> None:
    response = client.generic(method, path)

    assert response.status_code == 405
    assert error_of(response)["code"] == "method_not_allowed"
    assert "GET" in response["Allow"]


def test_the_response_to_a_crash_has_status_500_and_does_not_show_the_cause(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash(*args: object, **kwargs: object) -> None:
        raise RuntimeError("secret detail")

    monkeypatch.setattr("control.serving.model_list.views.base_models_list", crash)

    response = client.get("/v1/models")

    assert response.status_code == 500
    assert error_of(response)["type"] == "server_error"
    assert b"secret" not in response.content
    assert b"Traceback" not in response.content
    assert response["x-request-id"]


def test_a_crash_outside_of_the_api_views_has_the_same_error_format(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Broken:
        def cursor(self) -> None:
            raise RuntimeError("secret detail")

    monkeypatch.setattr("control.core.api.views.connection", Broken())

    response = client.get("/health")

    assert response.status_code == 500
    assert error_of(response)["code"] == "internal_error"
    assert b"secret" not in response.content


@pytest.mark.parametrize(
    ("body", "content_type", "status"),
    [
        (b"{", "application/json", 400),
        (b"[]", "application/json", 400),
        (b'"x"', "application/json", 400),
        (b"\xff\xfe", "application/json", 400),
        (b"a=1", "text/plain", 415),
    ],
)
def test_a_body_that_is_not_a_json_object_is_a_client_error(
    client: Client, body: bytes, content_type: str, status: int
) -> None:
    response = client.generic("POST", "/v1/batches", body, content_type=content_type)

    assert response.status_code == status
    assert error_of(response)["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    "header",
    [
        None,
        "Bearer",
        "Bearer ",
        "Basic eDp5",
        "Bearer sk_live_",
        "Bearer sk-proj-abc",
        "Bearer \u00e9" + "x" * 51,
        "Bearer sk_live_" + "a" * 44,
    ],
)
def test_an_invalid_api_key_has_status_401(db: None, header: str | None) -> None:
    headers = {} if header is None else {"Authorization": header}

    response = Client(raise_request_exception=False).get("/v1/models", headers=headers)

    assert response.status_code == 401
    assert response["WWW-Authenticate"] == "Bearer"
    assert error_of(response)["type"] == "authentication_error"


def test_every_response_has_a_request_id_and_keeps_a_valid_id_from_the_request(db: None) -> None:
    _, token = make_key()
    client = Client(headers={"Authorization": f"Bearer {token}"})

    request_ids = [client.get(path)["x-request-id"] for path in ("/v1/models", "/v1/none", "/health", "/admin/login/")]
    kept = client.get("/v1/models", headers={"x-request-id": "trace-0123456789"})["x-request-id"]
    replaced = client.get("/v1/models", headers={"x-request-id": "a b\tc" * 5})["x-request-id"]

    assert len(set(request_ids)) == len(request_ids)
    assert kept == "trace-0123456789"
    assert replaced.startswith("req_")


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        (
            "/v1/uploads",
            {"bytes": 1, "filename": "f", "mime_type": "text/plain", "purpose": "fine-tuning"},
            "purpose: must be one of assistants, batch, fine-tune, ",
        ),
        ("/v1/members", {"email": "a@example.com", "role": "root"}, "role: must be one of owner, "),
        (
            "/v1/batches",
            {"input_file_id": "f", "endpoint": "/v1/chat/completions", "completion_window": "1h"},
            "completion_window: must be one of 24h, got '1h'",
        ),
    ],
)
def test_the_error_for_an_invalid_choice_lists_the_choices(client: Client, path: str, body: Any, words: str) -> None:
    response = client.post(path, body, content_type="application/json")

    assert response.status_code == 400
    assert error_of(response)["message"].startswith(words)


def test_clients_are_told_not_to_repeat_a_request_that_conflicts_with_the_state_of_an_object() -> None:
    permanent = ApiError(409, "The name is taken.", "name_taken")
    passing = ApiError(409, "The stage is about to end.", "stage_ending", headers={"Retry-After": "1"})

    assert error_response(permanent).headers["x-should-retry"] == "false"
    assert "x-should-retry" not in error_response(passing).headers
    assert "x-should-retry" not in error_response(ApiError(400, "The name is empty.")).headers
