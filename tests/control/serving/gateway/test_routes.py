"""Routes are read from the database at most once a second, and a route that no longer works is read again."""

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from control.core.api.errors import ApiError
from control.core.processes.ports import free_port
from control.serving.deployments.models import Deployment, Replica
from control.serving.deployments.supervisor import Supervisor
from control.serving.gateway import routes
from control.serving.gateway.routes import OpenByTarget, Process, Route, Routes
from control.serving.gateway.upstream import Target
from control.tenants.accounts.models import ApiKey, Organization
from tests.control.serving.deployments.support import (
    State,
    identity_of,
    make_deployment,
    make_served_model,
    replica_of,
    tick_until_state,
)
from tests.control.serving.gateway.test_gateway import chat, wait_for

KEY = ApiKey(id="k", organization_id="org")


def make_route(port: int) -> Route:
    main = Process(deployment_id="d", target=Target(host="127.0.0.1", port=port, token="t"))
    return Route(
        named_id="d", main=(main,), canary=(), canary_percent=0, is_capped=False, input_nanousd=0, output_nanousd=0,
        context_tokens=1, template_bytes=0, remembers_answers=True, base_model_id="m",
    )  # fmt: skip


def port_of(route: Route) -> int:
    process = route.choose("", OpenByTarget())
    assert process is not None
    return process.target.port


class Reads:
    """Stands in for the threads that read routes, and returns the results in `answers` one after the other."""

    def __init__(self, *answers: Route | ApiError) -> None:
        self.answers = list(answers)
        self.num_reads = 0

    async def __call__(self, function: Callable[..., Any], *args: Any) -> Route:
        self.num_reads += 1
        await asyncio.sleep(0)
        answer = self.answers.pop(0)
        if isinstance(answer, ApiError):
            raise answer
        return answer


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1000.0]
    monkeypatch.setattr("control.serving.gateway.routes.monotonic", lambda: now[0])
    return now


def test_concurrent_requests_read_a_route_once(clock: list[float]) -> None:
    async def run() -> int:
        reads = Reads(make_route(1))
        found = Routes(reads)
        await asyncio.gather(*(found.find(KEY, "m") for _ in range(100)))
        return reads.num_reads

    assert asyncio.run(run()) == 1


def test_a_route_is_read_again_after_a_second(clock: list[float]) -> None:
    async def run() -> list[int]:
        found, ports = Routes(Reads(make_route(1), make_route(2))), []
        for seconds in (0.0, 0.9, 0.2):
            clock[0] += seconds
            ports.append(port_of(await found.find(KEY, "m")))
        return ports

    assert asyncio.run(run()) == [1, 1, 2]


def test_routes_are_cached_separately_for_each_model_and_for_keys_with_other_rights(clock: list[float]) -> None:
    async def run() -> int:
        reads = Reads(*(make_route(number) for number in range(4)))
        found = Routes(reads)
        restricted = ApiKey(id="k", organization_id="org", deployment_ids=["d"])
        for key, model in ((KEY, "m"), (KEY, "n"), (restricted, "m"), (ApiKey(id="k", organization_id="other"), "m")):
            await found.find(key, model)
        return reads.num_reads

    assert asyncio.run(run()) == 4


def test_a_refused_route_is_not_cached(clock: list[float]) -> None:
    async def run() -> int:
        found = Routes(Reads(ApiError(503, "It is starting."), make_route(1)))
        with pytest.raises(ApiError):
            await found.find(KEY, "m")
        return port_of(await found.find(KEY, "m"))

    assert asyncio.run(run()) == 1


def test_a_caller_who_disconnects_does_not_end_the_lookup_of_a_route_for_others(clock: list[float]) -> None:
    async def run() -> int:
        found = Routes(Reads(make_route(1)))
        first, second = (asyncio.create_task(found.find(KEY, "m")) for _ in range(2))
        await asyncio.sleep(0)
        first.cancel()
        return port_of(await second)

    assert asyncio.run(run()) == 1


@pytest.mark.usefixtures("deployment")
def test_a_request_reaches_an_engine_whose_port_changed_while_its_route_was_cached(base_url: str, token: str) -> None:
    port = Replica.objects.get().port
    Replica.objects.update(port=free_port())
    headers = {"Authorization": f"Bearer {token}"}
    with httpx2.Client(base_url=base_url, headers=headers, trust_env=False) as client:
        assert client.post("/chat/completions", json=chat("hello")).status_code == 502
        Replica.objects.update(port=port)

        assert client.post("/chat/completions", json=chat("hello")).status_code == 200


@pytest.fixture
def client(base_url: str, token: str) -> Iterator[httpx2.Client]:
    headers = {"Authorization": f"Bearer {token}"}
    with httpx2.Client(base_url=base_url, headers=headers, trust_env=False) as client:
        yield client


@pytest.fixture
def cached(client: httpx2.Client, deployment: Deployment, monkeypatch: pytest.MonkeyPatch) -> Deployment:
    """The route of the deployment is cached for an hour."""
    monkeypatch.setattr(routes, "CACHE_SECONDS", 3600.0)
    assert client.post("/chat/completions", json=chat("hello")).status_code == 200
    return deployment


def test_a_deployment_that_was_deleted_while_its_route_was_cached_is_not_found(
    client: httpx2.Client, cached: Deployment
) -> None:
    identity = identity_of(cached)
    Deployment.objects.all().delete()
    assert client.post("/chat/completions", json=chat("hello")).status_code == 200, "its engine still runs"
    os.kill(identity.pid, signal.SIGKILL)
    wait_for(lambda: not identity.is_alive())

    response = client.post("/chat/completions", json=chat("hello"))

    assert (response.status_code, response.json()["error"]["code"]) == (404, "model_not_found")


def test_a_request_reaches_an_engine_whose_token_changed_while_its_route_was_cached(
    client: httpx2.Client, deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routes, "CACHE_SECONDS", 3600.0)
    token_before = replica_of(deployment).token
    Replica.objects.update(token="of the previous process")
    refused = client.post("/chat/completions", json=chat("hello"))
    assert (refused.status_code, refused.json()["error"]["code"]) == (502, "upstream_unavailable")
    Replica.objects.update(token=token_before)

    assert client.post("/chat/completions", json=chat("hello")).status_code == 200


def test_a_request_reaches_another_engine_if_the_one_in_the_cached_route_is_about_to_stop(
    base_url: str, token: str, supervisor: Supervisor, deployment: Deployment, caller: Organization, tmp_path: Path
) -> None:
    stopping = make_deployment(make_served_model(tmp_path / "stopping", "draining"), caller, "stopping")
    tick_until_state(supervisor, stopping, State.READY)
    fast, own, other = Replica.objects.filter(deployment=deployment), replica_of(deployment), replica_of(stopping)
    fast.update(port=other.port, token=other.token)
    headers = {"Authorization": f"Bearer {token}"}
    with httpx2.Client(base_url=base_url, headers=headers, trust_env=False) as client:
        refused = client.post("/chat/completions", json=chat("hello"))
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "server_draining")
        fast.update(port=own.port, token=own.token)

        assert client.post("/chat/completions", json=chat("hello")).status_code == 200
