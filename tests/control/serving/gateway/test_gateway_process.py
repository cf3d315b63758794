"""The gateway in a separate process with a real database, between many callers and a fake engine."""

import asyncio
import socket
from collections import Counter
from contextlib import ExitStack

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.db import connection
from django.db.models import Sum

from benchmarks.gateway.load import Address, completion, read, response
from benchmarks.gateway.load import connection as stream
from control.billing.spending.models import SpendCap
from control.billing.usage.models import UsageRecord
from control.billing.usage.services import price_set
from control.tenants.authentication.api_keys import key_of
from tests.control.serving.gateway.test_noisy_neighbour import serving
from tests.control.serving.gateway.test_noisy_neighbour import tokens as tokens
from tests.databases import needs_postgres, postgres_server
from tests.workers.supervisor.conftest import stack as stack
from tests.workers.supervisor.live import LiveStack

USD = 10**9
NUM_REQUESTS = 200
NUM_SILENT, SILENT_SECONDS, MAX_BYTES_PER_SILENT = 200, 10.0, 500_000


@sync_to_async
def num_output_tokens() -> int:
    try:
        return UsageRecord.objects.aggregate(total=Sum("output_tokens"))["total"] or 0
    finally:
        connection.close()


async def wait_for_output_tokens(num: int) -> None:
    async with asyncio.timeout(60):
        while await num_output_tokens() < num:
            await asyncio.sleep(0.05)


def test_200_concurrent_requests_use_up_a_spend_cap_and_do_not_exceed_it(stack: LiveStack, tokens: list[str]) -> None:
    """A request costs 3 USD, so a cap of 31 USD admits ten."""
    price_set(base_model_id="", input_nanousd=0, output_nanousd=USD)
    organization_id = key_of(f"Bearer {tokens[0]}").organization_id
    SpendCap.objects.create(organization_id=organization_id, nanousd=31 * USD)

    async def measure() -> Counter[int]:
        async with serving(stack) as (port, _):
            address = Address(port=port, token=tokens[0])
            request = completion(address, model="m", num_events=3, pause_ms=20)
            statuses: Counter[int] = Counter()
            for _ in range(2):  # in the first round, reservations that exceed the final cost may cause refusals
                answers = await asyncio.gather(*(response(address, request) for _ in range(NUM_REQUESTS)))
                statuses.update(status for status, _ in answers)
                await wait_for_output_tokens(3 * statuses[200])
        return statuses

    statuses = async_to_sync(measure)()

    assert statuses == {200: 10, 429: 2 * NUM_REQUESTS - 10}
    assert async_to_sync(num_output_tokens)() == 30


@pytest.mark.wide
def test_the_gateways_memory_stays_small_while_200_callers_do_not_read_their_streams(
    stack: LiveStack, tokens: list[str]
) -> None:
    async def measure() -> tuple[int, tuple[int, bytes]]:
        async with serving(stack) as (port, process):
            loud, quiet = (Address(port=port, token=token) for token in tokens)
            for address in (loud, quiet):
                await response(address, completion(address, model="m", num_events=1))  # loads code
            before = process.rss_bytes
            request = completion(loud, model="m", num_events=10**9)
            with ExitStack() as opened:
                for _ in range(NUM_SILENT):
                    silent = opened.enter_context(socket.create_connection(("127.0.0.1", port)))
                    silent.sendall(request)
                await asyncio.sleep(SILENT_SECONDS)  # the engine could send gigabytes in this time
                return process.rss_bytes - before, await response(quiet, read(quiet, "/v1/deployments"))

    grown, (status, _) = async_to_sync(measure)()

    assert status == 200
    assert grown <= NUM_SILENT * MAX_BYTES_PER_SILENT


NUM_EVENTS = 60


async def read_stream(address: Address, begun: asyncio.Semaphore) -> bytes:
    """Returns the rest of a stream after the beginning of its first event. The stream takes about three seconds."""
    async with stream(address, completion(address, model="m", num_events=NUM_EVENTS, pause_ms=50)) as reader:
        await reader.readuntil(b"data: ")
        begun.release()
        return await reader.read()


def close_connection() -> None:
    connection.close()


@pytest.mark.parametrize("database_kind", [needs_postgres("postgresql")])
def test_requests_during_an_outage_of_the_database_get_503_and_no_usage_of_open_streams_is_lost(
    stack: LiveStack, tokens: list[str]
) -> None:
    async def measure() -> None:
        async with serving(stack) as (port, _):
            address = Address(port=port, token=tokens[0])
            short = completion(address, model="m", num_events=1)
            assert (await response(address, short))[0] == 200
            begun = asyncio.Semaphore(0)
            streams = [asyncio.create_task(read_stream(address, begun)) for _ in range(10)]
            for _ in streams:
                await begun.acquire()
            await sync_to_async(postgres_server().crash)()
            try:
                for request in (short, read(address, "/v1/deployments")):
                    status, body = await response(address, request)
                    assert (status, b'"database_unavailable"' in body) == (503, True)
                assert all(b"data: [DONE]" in end for end in await asyncio.gather(*streams))
                await asyncio.sleep(0.5)  # meanwhile, the gateway tries to write their usage
            finally:
                await sync_to_async(postgres_server().start)()
            await sync_to_async(close_connection)()
            assert (await response(address, short))[0] == 200
            await wait_for_output_tokens(1 + 10 * NUM_EVENTS + 1)

    async_to_sync(measure)()

    assert async_to_sync(num_output_tokens)() == 1 + 10 * NUM_EVENTS + 1
