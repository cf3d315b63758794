"""Sends HTTP requests over plain sockets and times them. A client library would need more time than the gateway."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    port: int
    token: str


def completion(address: Address, *, model: str, num_events: int, pause_ms: int = 0) -> bytes:
    """Returns a request that the pretended engine answers with `num_events` events and a pause after each."""
    messages = [{"role": "user", "content": "hello"}]
    body = {"model": model, "messages": messages, "stream": True, "max_tokens": num_events, "seed": pause_ms}
    return post(address, "/v1/chat/completions", json.dumps(body).encode())


def read(address: Address, path: str, *headers: str) -> bytes:
    return _request(address, f"GET {path}", b"", headers)


def post(address: Address, path: str, content: bytes, *headers: str, content_type: str = "application/json") -> bytes:
    return _request(address, f"POST {path}", content, (f"Content-Type: {content_type}", *headers))


def _request(address: Address, line: str, content: bytes, headers: Sequence[str]) -> bytes:
    lines = (
        f"{line} HTTP/1.1",
        "Host: 127.0.0.1",
        f"Authorization: Bearer {address.token}",
        "Connection: close",
        f"Content-Length: {len(content)}",
        *headers,
    )
    return "\r\n".join((*lines, "", "")).encode() + content


@asynccontextmanager
async def connection(address: Address, request: bytes) -> AsyncIterator[asyncio.StreamReader]:
    """Sends the request, and reads the response up to the first byte of its body. The status must be 200."""
    async with connected(address) as (reader, writer):
        writer.write(request)
        head = await reader.readuntil(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(f"{head.splitlines()[0].decode()}: {(await reader.read(500)).decode()}")
        yield reader


async def response(address: Address, request: bytes) -> tuple[int, bytes]:
    """Returns: the status and the body."""
    async with connected(address) as (reader, writer):
        writer.write(request)
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        return int(head.split()[1]), body


@asynccontextmanager
async def connected(address: Address) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", address.port)
    try:
        yield reader, writer
    finally:
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


async def seconds_to_first_byte(address: Address, request: bytes) -> float:
    """Returns the time until the body's first byte, from before the connection is opened."""
    began = time.perf_counter()
    async with connection(address, request) as reader:
        await reader.read(1)
        seconds = time.perf_counter() - began
        await reader.read()
    return seconds


async def num_events(address: Address, request: bytes) -> int:
    """Reads a stream to its end. Returns: the number of its events."""
    async with connection(address, request) as reader:
        return (await reader.read()).count(b"data: ")
