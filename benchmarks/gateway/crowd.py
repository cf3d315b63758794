"""Holds streams open in a separate process, so that the callers that measure are not slowed down.

    python -m benchmarks.gateway.crowd PORT TOKEN MODEL COUNT

The process prints `open` when every stream has received its first event, and ends when its standard input is closed.
"""

import asyncio
import os
import sys

from benchmarks.gateway.load import Address, completion, connection
from benchmarks.gateway.server import raise_file_limit

OPENING = 16  # connections that are opened at the same time
PAUSE_MS = 1_000


async def main(port: str, token: str, model: str, count: str) -> None:
    raise_file_limit()
    address, opening = Address(port=int(port), token=token), asyncio.Semaphore(OPENING)
    request = completion(address, model=model, num_events=0, pause_ms=PAUSE_MS)
    begun = asyncio.Semaphore(0)

    async def hold() -> None:
        async with opening:
            stream = connection(address, request)
            reader = await stream.__aenter__()
            await reader.readuntil(b"data: ")
        begun.release()
        await reader.read()

    held = [asyncio.create_task(hold()) for _ in range(int(count))]
    for _ in held:
        await begun.acquire()
    print("open", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    os._exit(0)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
