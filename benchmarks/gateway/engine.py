"""A pretended engine: a real HTTP server that streams events without a model. Like uvicorn, it keeps connections open.

    python -m benchmarks.gateway.engine     prints its port, and ends when its standard input is closed
    python -m benchmarks.gateway.engine --port PORT ...     as a supervisor starts it: serves until it is killed

The request decides what the engine sends: `max_tokens` events, with a pause of `seed` milliseconds after each. With 0
`max_tokens` it sends one event and then a comment every `seed` milliseconds, until the caller disconnects.
"""

import argparse
import asyncio
import json
import os
import sys
from contextlib import suppress

_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
_DONE = b"data: [DONE]\n\n"


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=0)
    options, _ = parser.parse_known_args()  # the other options of a real engine have no meaning here
    server = await asyncio.start_server(_serve, "127.0.0.1", options.port, backlog=1024)
    if options.port:
        await server.serve_forever()
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.to_thread(sys.stdin.read)
    os._exit(0)  # ends at once, although streams may still be open


def event(number: int) -> bytes:
    """Returns an event as large as those of a real engine, with usage, which the gateway requests in every stream."""
    chunk = {
        "id": "chatcmpl-0123456789abcdef0123456789abcdef",
        "object": "chat.completion.chunk",
        "created": 1_780_000_000,
        "model": "bench",
        "choices": [{"index": 0, "delta": {"content": "token "}, "finish_reason": None, "logprobs": None}],
        "usage": {
            "prompt_tokens": 7,
            "completion_tokens": number,
            "total_tokens": 7 + number,
            "prompt_tokens_details": {"cached_tokens": 0},
        },
    }
    return b"data: " + json.dumps(chunk, separators=(",", ":")).encode() + b"\n\n"


async def _serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError, asyncio.IncompleteReadError):
        is_last = False
        while not is_last:
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            is_last = b"\r\nconnection: close\r\n" in head
            if head.startswith(b"get "):
                body = b"{}" if head.startswith(b"get /health ") else b""  # the counters of this engine are empty
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
                continue
            lines = head.split(b"\r\n")
            length = next(int(line.split(b":")[1]) for line in lines if line.startswith(b"content-length:"))
            body = json.loads(await reader.readexactly(length))
            writer.write(_HEAD)
            await _stream(writer, num_events=body["max_tokens"], pause_seconds=body.get("seed", 0) / 1000)
    writer.close()


async def _stream(writer: asyncio.StreamWriter, *, num_events: int, pause_seconds: float) -> None:
    for number in range(max(1, num_events)):
        await _write(writer, event(number + 1))
        if pause_seconds:
            await asyncio.sleep(pause_seconds)
    while not num_events:
        await _write(writer, b":\n\n")
        await asyncio.sleep(pause_seconds)
    await _write(writer, _DONE)
    await _write(writer, b"")  # an empty chunk ends the body


async def _write(writer: asyncio.StreamWriter, chunk: bytes) -> None:
    writer.write(b"%x\r\n%b\r\n" % (len(chunk), chunk))
    await writer.drain()


if __name__ == "__main__":
    asyncio.run(main())
