import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import httpx2
import openai
import pytest
from django.db import OperationalError

from control.billing.usage.models import UsageRecord
from control.billing.usage.services import price_set
from control.serving.deployments.models import Deployment
from control.serving.deployments.services import deployment_delete, deployment_stop
from control.serving.deployments.states import State
from control.serving.gateway.routes import CACHE_SECONDS
from control.tenants.accounts.models import ApiKey, Organization, Project
from control.tenants.administration.services import api_key_revoke
from tests.control.factories import make_base_model, make_key, make_organization
from tests.control.serving.deployments.support import make_deployment


@pytest.fixture
def client(base_url: str, token: str) -> Iterator[httpx2.Client]:
    with httpx2.Client(base_url=base_url, headers={"Authorization": f"Bearer {token}"}, trust_env=False) as client:
        yield client


@pytest.mark.usefixtures("deployment")
def test_a_revoked_key_can_no_longer_use_an_endpoint(client: httpx2.Client, caller: Organization) -> None:
    assert post(client, chat("hello")).status_code == 200

    api_key_revoke(key=ApiKey.objects.get(organization=caller))

    assert post(client, chat("hello")).status_code == 401


@pytest.mark.usefixtures("deployment")
def test_a_stream_that_has_begun_continues_to_its_end_although_its_key_is_revoked(
    client: httpx2.Client, caller: Organization, tmp_path: Path
) -> None:
    with client.stream("POST", "/chat/completions", json=chat("pause", stream=True)) as response:
        chunks = response.iter_text()
        assert "token0" in next(chunks)
        api_key_revoke(key=ApiKey.objects.get(organization=caller))
        assert post(client, chat("hello")).status_code == 401
        (tmp_path / "model" / "go_on").touch()
        rest = "".join(chunks)

    assert rest.endswith("data: [DONE]\n\n")
    wait_for(UsageRecord.objects.filter(requests=1, output_tokens=2).exists)


def chat(content: str, *, model: object = "fast", **values: Any) -> dict[str, Any]:
    return {"model": model, "messages": [{"role": "user", "content": content}], **values}


def post(client: httpx2.Client, body: object, path: str = "/chat/completions") -> httpx2.Response:
    return client.post(path, json=body)


def events_of(response: httpx2.Response) -> list[str]:
    assert response.text.endswith("\n\n")
    return [event.removeprefix("data: ") for event in response.text.removesuffix("\n\n").split("\n\n")]


def wait_for(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"the condition was false for {seconds} s"
        time.sleep(0.02)


@pytest.mark.usefixtures("deployment")
@pytest.mark.parametrize("path", ["/chat/completions", "/completions", "/audit"])
def test_a_request_is_passed_to_the_engine_unchanged(client: httpx2.Client, path: str) -> None:
    body = chat("hello", temperature=0.5, prompt="hello", a_parameter_of_tomorrow=[1, 2])

    response = post(client, body, path)

    assert response.status_code == 200
    assert response.json()["echo"] == body
    assert response.json()["path"] == f"/v1{path}"
    assert response.headers["x-request-id"]


def test_the_gateway_and_not_the_client_tells_the_engine_the_project_of_a_key(
    base_url: str, deployment: Deployment, caller: Organization
) -> None:
    project, other = (Project.objects.create(organization=caller, name=name) for name in ("own", "other"))
    Deployment.objects.update(project=project)

    def memory_of(**key: Any) -> Any:
        return post_with_key(base_url, caller, {"x-slipstream-memory": other.pk}, **key).json()["memory"]

    assert [memory_of(project=project), memory_of()] == [project.pk, caller.pk]
    Deployment.objects.update(remember_answers=False)
    assert memory_of(project=project) is None


def post_with_key(base_url: str, caller: Organization, headers: dict[str, str], **key: Any) -> httpx2.Response:
    headers = {"Authorization": f"Bearer {make_key(caller, **key)[1]}", **headers}
    with httpx2.Client(base_url=base_url, headers=headers, trust_env=False) as client:
        return post(client, chat("hello"))


@pytest.mark.usefixtures("deployment")
def test_a_deployment_answers_no_key_of_another_project(base_url: str, caller: Organization) -> None:
    own, other = (Project.objects.create(organization=caller, name=name) for name in ("own", "other"))
    Deployment.objects.update(project=own)

    statuses = {}
    for name, project in (("own", own), ("other", other), ("none", None)):
        response = post_with_key(base_url, caller, {}, project=project)
        statuses[name] = (response.status_code, response.json().get("error", {}).get("code"))

    assert statuses == {"own": (200, None), "other": (404, "model_not_found"), "none": (200, None)}


@pytest.mark.usefixtures("deployment")
def test_a_stream_is_passed_on_completely(client: httpx2.Client) -> None:
    response = post(client, chat("hello", stream=True))

    assert response.headers["content-type"] == "text/event-stream"
    events = events_of(response)
    assert [json.loads(event)["choices"][0]["delta"]["content"] for event in events[:-1]] == ["token0 ", "token1 "]
    assert events[-1] == "[DONE]"


@pytest.mark.usefixtures("deployment")
def test_events_are_passed_on_as_soon_as_they_are_generated(client: httpx2.Client) -> None:
    """For `linger` the engine sends two events and then waits. If they were buffered, the read would never return."""
    with client.stream("POST", "/chat/completions", json=chat("linger", stream=True)) as response:
        first = next(response.iter_text())

    assert "token0" in first


@pytest.mark.usefixtures("deployment")
def test_a_stream_whose_engine_dies_ends_with_an_error_and_without_done(client: httpx2.Client) -> None:
    response = post(client, chat("die", stream=True))

    events = [json.loads(event) for event in events_of(response)]  # whole events only: half an event would not parse
    assert len(events) == 3
    assert events[2]["error"]["code"] == "upstream_terminated"
    assert set(events[2]["error"]) == {"message", "type", "param", "code"}


@pytest.mark.usefixtures("deployment")
def test_openais_client_raises_an_error_if_the_engine_dies_during_a_stream(base_url: str, token: str) -> None:
    with openai.OpenAI(base_url=base_url, api_key=token) as client:
        stream = client.chat.completions.create(
            model="fast", messages=[{"role": "user", "content": "die"}], stream=True
        )
        text = "".join(next(stream).choices[0].delta.content or "" for _ in range(2))
        with pytest.raises(openai.APIError) as caught:
            next(stream)

    assert text == "token0 token1 "
    assert caught.value.code == "upstream_terminated"


@pytest.mark.usefixtures("deployment")
@pytest.mark.parametrize(("content", "stream"), [("die at once", False), ("die at once", True), ("hang up", True)])
def test_an_engine_that_fails_before_its_answer_causes_status_502(
    client: httpx2.Client, content: str, stream: bool
) -> None:
    response = post(client, chat(content, stream=stream))

    assert response.status_code == 502
    assert response.json()["error"]["code"] == "upstream_unavailable"


@pytest.mark.usefixtures("deployment")
def test_a_locked_database_does_not_hide_that_the_engine_failed(
    client: httpx2.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def as_tenant(organization_id: str, project_id: str | None) -> NoReturn:
        raise OperationalError("database is locked")

    monkeypatch.setattr("control.serving.gateway.accounting.as_tenant", as_tenant)

    assert post(client, chat("die at once")).status_code == 502


@pytest.mark.usefixtures("deployment")
@pytest.mark.parametrize("stream", [False, True])
def test_errors_of_the_engine_are_passed_on(client: httpx2.Client, stream: bool) -> None:
    response = post(client, chat("refuse", stream=stream))

    assert response.status_code == 400
    assert response.json() == {
        "error": {"message": "too long", "type": "invalid_request_error", "param": "messages", "code": "too_long"}
    }


@pytest.mark.usefixtures("deployment")
@pytest.mark.parametrize("stream", [False, True])
def test_the_engine_stops_working_when_the_caller_disconnects(
    client: httpx2.Client, tmp_path: Path, stream: bool
) -> None:
    with pytest.raises(httpx2.ReadTimeout):
        client.post("/chat/completions", json=chat("linger", stream=stream), timeout=1.0)

    wait_for(lambda: (tmp_path / "model" / "hung_up").exists())


@pytest.mark.usefixtures("deployment")
def test_requests_for_another_organizations_deployment_and_an_unknown_one_get_the_same_error(
    client: httpx2.Client,
) -> None:
    make_deployment(make_base_model(), make_organization(), "theirs")

    foreign, unknown = post(client, chat("hello", model="theirs")), post(client, chat("hello", model="nobodys"))

    assert foreign.status_code == unknown.status_code == 404
    assert foreign.json()["error"]["code"] == "model_not_found"
    assert foreign.json() == json.loads(unknown.text.replace("nobodys", "theirs"))


def test_organizations_with_equal_endpoint_names_reach_their_own_endpoint(
    base_url: str, deployment: Deployment
) -> None:
    other = make_organization()
    make_deployment(make_base_model(), other, deployment.name)
    headers = {"Authorization": f"Bearer {make_key(other)[1]}"}

    response = httpx2.post(f"{base_url}/chat/completions", json=chat("hello"), headers=headers, trust_env=False)

    assert response.status_code == 503  # the other organization's endpoint is still starting


@pytest.mark.parametrize("headers", [{}, {"Authorization": "Bearer sk_live_wrong"}, {"Authorization": "Basic eA=="}])
def test_a_request_without_a_valid_key_is_refused_whatever_its_body(base_url: str, headers: dict[str, str]) -> None:
    response = httpx2.post(f"{base_url}/chat/completions", content=b"not json", headers=headers, trust_env=False)

    assert response.status_code == 401


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", "invalid_json"),
        (b"[1]", "invalid_json"),
        (b"[" * 100_000, "invalid_json"),
        (b'{"model": "\\ud800"}', "invalid_type"),
        (b'{"model": 1e999}', "invalid_json"),
        (b"{}", "missing_required_parameter"),
        (b'{"model": 1}', "invalid_type"),
    ],
)
def test_the_error_of_a_malformed_body_gives_the_reason(client: httpx2.Client, body: bytes, code: str) -> None:
    response = client.post("/chat/completions", content=body)

    assert (response.status_code, response.json()["error"]["code"]) == (400, code)


def test_a_body_that_is_too_large_is_refused(client: httpx2.Client) -> None:
    response = client.post("/chat/completions", content=b" " * (9 * 1024 * 1024))

    assert (response.status_code, response.json()["error"]["code"]) == (413, "request_too_large")


def test_only_post_is_allowed(client: httpx2.Client) -> None:
    response = client.get("/chat/completions")

    assert (response.status_code, response.headers["allow"]) == (405, "POST")


def test_the_error_for_a_starting_deployment_says_when_to_retry(client: httpx2.Client, caller: Organization) -> None:
    make_deployment(make_base_model(), caller, "fast")

    response = post(client, chat("hello"))

    assert (response.status_code, response.headers["retry-after"]) == (503, "5")
    assert response.json()["error"]["code"] == "deployment_not_ready"


@pytest.mark.parametrize("state", [State.STOPPED, State.FAILED])
def test_the_error_for_a_stopped_or_failed_deployment_says_not_to_retry(
    client: httpx2.Client, caller: Organization, state: Deployment.State
) -> None:
    make_deployment(make_base_model(), caller, "fast")
    Deployment.objects.update(state=state)

    response = post(client, chat("hello"))

    assert response.json()["error"]["code"] == f"deployment_{state}"
    assert (response.status_code, response.headers["x-should-retry"]) == (503, "false")


def test_a_stopped_deployment_receives_no_request_after_a_second(client: httpx2.Client, deployment: Deployment) -> None:
    assert post(client, chat("hello")).status_code == 200
    deployment_stop(deployment=deployment)
    time.sleep(CACHE_SECONDS)
    assert post(client, chat("hello")).status_code == 503

    deployment_delete(deployment=deployment)
    assert post(client, chat("hello")).status_code == 404


def test_responses_of_the_gateway_have_the_security_headers_of_the_rest_of_the_api(client: httpx2.Client) -> None:
    names = ("x-content-type-options", "x-frame-options", "referrer-policy", "cross-origin-opener-policy")
    api, gateway = client.get("/models"), post(client, chat("hello"))

    assert [gateway.headers[name] for name in names] == [api.headers[name] for name in names]
    assert "ratelimit" in gateway.headers


def test_a_request_for_another_host_is_refused(client: httpx2.Client) -> None:
    response = client.post("/chat/completions", json=chat("hello"), headers={"Host": "other.example"})

    assert (response.status_code, response.json()["error"]["code"]) == (400, "invalid_request")


def test_the_price_follows_the_base_model_and_not_the_endpoints_name(
    client: httpx2.Client, deployment: Deployment, caller: Organization
) -> None:
    """The customer has named the endpoint of an expensive model after a cheap model."""
    cheap = make_base_model(deployment.name)
    price_set(base_model_id=cheap.pk, model=cheap.name, input_nanousd=1, output_nanousd=1)
    price_set(base_model_id=deployment.base_model_id, input_nanousd=1000, output_nanousd=1000)

    assert post(client, chat("hello")).status_code == 200

    wait_for(UsageRecord.objects.filter(organization=caller).exists)  # the gateway writes usage after the response
    usage = UsageRecord.objects.get(organization=caller)
    assert (usage.model, usage.base_model_id) == (deployment.name, deployment.base_model_id)
    assert usage.input_nanousd == usage.input_tokens * 1000 > 0
    assert usage.output_nanousd == usage.output_tokens * 1000 > 0


@pytest.mark.usefixtures("deployment")
def test_once_there_is_a_price_an_endpoint_whose_model_has_none_is_refused(client: httpx2.Client) -> None:
    price_set(base_model_id=make_base_model("fast").pk, input_nanousd=1, output_nanousd=1)

    response = post(client, chat("hello"))

    assert (response.status_code, response.json()["error"]["code"]) == (403, "model_not_priced")
