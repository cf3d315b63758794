"""An API key is refused if its organization has too many open streams. For some time, further requests with the key
are then refused without a database query."""

import asyncio
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from django.http import HttpRequest
from django.test import RequestFactory

from control.core.database_threads import DatabaseThreads
from control.tenants.async_requests.handler import UnreadRequest
from control.tenants.events import feed
from control.tenants.events.feed import PATH, Feed, RefusedKeys
from control.tenants.events.stream import MAX_STREAMS, _num_open


def request(**headers: str) -> HttpRequest:
    return RequestFactory().get(PATH, headers=headers)


@pytest.fixture
def full_organization() -> Iterator[str]:
    _num_open["org_full"] = MAX_STREAMS
    yield "org_full"
    del _num_open["org_full"]


def test_a_refused_key_is_not_authenticated_again_while_its_organization_has_too_many_streams(
    full_organization: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    authenticated = []

    async def authenticate(asked: HttpRequest, *_: Any) -> Any:
        authenticated.append(asked)
        await asyncio.sleep(0)  # lets the other requests begin
        return SimpleNamespace(organization_id=full_organization)

    monkeypatch.setattr(feed, "authenticate", authenticate)

    async def statuses() -> list[int]:
        threads = DatabaseThreads(1)
        feeds = Feed(threads)

        async def answer() -> int:
            async def receive() -> dict[str, Any]:
                return {"type": "http.request", "body": b"", "more_body": False}

            headers = [(b"authorization", b"Bearer a")]
            scope = {"type": "http", "method": "GET", "path": PATH, "headers": headers, "query_string": b""}
            return (await feeds._view(UnreadRequest(scope, receive))).status_code

        try:
            return await asyncio.gather(*(answer() for _ in range(5)))
        finally:
            await threads.close()

    assert asyncio.run(statuses()) == [429] * 5
    assert len(authenticated) == 1


def test_a_refusal_is_remembered_for_a_limited_time_and_only_for_its_key() -> None:
    now = 100.0
    refused = RefusedKeys(seconds=5.0, max_keys=2, clock=lambda: now)
    for number in range(3):
        refused.add(request(**{"x-api-key": f"{number}"}), f"org_{number}")
    remembered = [refused.organization_of(request(**{"x-api-key": f"{number}"})) for number in range(4)]
    assert remembered == [None, "org_1", "org_2", None]
    assert refused.organization_of(request(Authorization="Bearer 2")) is None
    now = 105.0
    assert refused.organization_of(request(**{"x-api-key": "2"})) is None
