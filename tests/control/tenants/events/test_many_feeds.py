"""Many open streams of events. All tests but one use a real process of the API, its database and its sockets."""

import asyncio
import threading
from contextlib import AsyncExitStack

from asgiref.sync import async_to_sync, sync_to_async
from django.db import transaction

from benchmarks.gateway.load import Address, connection, read, response
from benchmarks.gateway.server import gateway
from control.core.database_threads import DatabaseThreads
from control.tenants.accounts.models import Organization
from control.tenants.administration.services import api_key_revoke
from control.tenants.events.feed import Feed
from control.tenants.events.services import event_record
from control.tenants.events.stream import MAX_STREAMS
from tests.control.factories import make_key, make_organization
from tests.control.serving.gateway.test_noisy_neighbour import MAX_CONNECTIONS, MAX_THREADS, num_connections
from tests.workers.supervisor.conftest import stack as stack
from tests.workers.supervisor.live import LiveStack

NUM_FEEDS = 200


def feed(address: Address) -> bytes:
    """Returns a request for a stream with two `Accept` headers.

    Such a request must reach the ASGI application too: Django's view would keep a thread for the stream.
    """
    return read(address, "/v1/events", "Accept: text/event-stream", "Accept: */*")


@sync_to_async
def record(organization: Organization) -> str:
    with transaction.atomic():
        return event_record(
            organization_id=organization.pk, project_id=None, type="batch.completed", object_id="batch_1"
        ).id


def test_200_open_feeds_need_few_threads_and_connections_and_another_organizations_feed_gets_its_events(
    stack: LiveStack,
) -> None:
    tokens = [make_key()[1] for _ in range(NUM_FEEDS // MAX_STREAMS)]
    neighbour = make_organization()
    neighbours_token = make_key(neighbour)[1]

    async def measure() -> tuple[int, int]:
        async with (
            gateway(stack.environment, stack.data_dir / "worker-api.log") as (port, process),
            AsyncExitStack() as opened,
        ):
            for token in tokens * MAX_STREAMS:
                address = Address(port=port, token=token)
                stream = await opened.enter_async_context(connection(address, feed(address)))
                await stream.readuntil(b"retry: ")
            address = Address(port=port, token=neighbours_token)
            assert (await response(address, read(address, "/v1/deployments")))[0] == 200
            mine = await opened.enter_async_context(connection(address, feed(address)))
            event_id = await record(neighbour)
            async with asyncio.timeout(60):
                await mine.readuntil(f"id: {event_id}".encode())
            return process.num_threads, num_connections(process, stack)

    threads, connections = async_to_sync(measure)()

    assert threads <= MAX_THREADS
    assert connections <= MAX_CONNECTIONS


def test_an_open_feed_ends_when_its_key_is_revoked_and_the_key_opens_no_other_feed(stack: LiveStack) -> None:
    key, token = make_key()

    async def measure() -> tuple[bytes, int]:
        async with gateway(stack.environment, stack.data_dir / "worker-api.log") as (port, _):
            address = Address(port=port, token=token)
            async with connection(address, feed(address)) as stream, asyncio.timeout(60):
                await stream.readuntil(b"retry: ")
                await sync_to_async(api_key_revoke)(key=key)
                rest = await stream.read()
            return rest, (await response(address, feed(address)))[0]

    rest, status = async_to_sync(measure)()

    assert b"data: " not in rest
    assert status == 401


def test_database_polls_of_one_organization_occupy_one_thread_even_if_their_clients_disconnect() -> None:
    released = threading.Event()

    async def poll_of_another_organization() -> str:
        threads = DatabaseThreads(2)
        feeds = Feed(threads)
        polls = [asyncio.ensure_future(feeds._one_at_a_time("loud")(released.wait)) for _ in range(MAX_STREAMS)]
        try:
            await asyncio.sleep(0)  # the polls begin
            for poll in polls[: MAX_STREAMS // 2]:
                poll.cancel()
            return await asyncio.wait_for(feeds._one_at_a_time("quiet")(lambda: "answered"), 60)
        finally:
            released.set()
            await asyncio.gather(*polls, return_exceptions=True)
            await threads.close()

    assert asyncio.run(poll_of_another_organization()) == "answered"


def test_of_200_concurrent_feeds_of_one_organization_only_as_many_as_allowed_are_opened(stack: LiveStack) -> None:
    token = make_key()[1]

    refusals = []

    async def measure() -> None:
        async with (
            gateway(stack.environment, stack.data_dir / "worker-api.log") as (port, _),
            AsyncExitStack() as opened,
        ):
            address = Address(port=port, token=token)

            async def open_feed() -> None:
                try:
                    await opened.enter_async_context(connection(address, feed(address)))
                except RuntimeError as refused:
                    refusals.append(str(refused))

            await asyncio.gather(*(open_feed() for _ in range(NUM_FEEDS)))

    async_to_sync(measure)()

    assert len(refusals) == NUM_FEEDS - MAX_STREAMS
    assert all("429" in refusal and "too_many_streams" in refusal for refusal in refusals)
