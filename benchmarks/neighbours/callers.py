"""Sends, from a separate process, requests that are expensive to refuse or to hold.

    python -m benchmarks.neighbours.callers bodies|bombs|files|feeds PORT TOKEN

The process prints `calling` when it begins, and `cycle` when the server has answered each request once with a status
other than 429. It ends when its standard input is closed. The callers begin at different requests. Each caller pauses
after each request: on a small machine, an endless flood would only measure which process gets the processor.
"""

import asyncio
import gzip
import json
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import cycle

from benchmarks.gateway.installation import MODEL
from benchmarks.gateway.load import Address, post, read, response

MIB, CHUNK_BYTES = 2**20, 2**16
NUM_CALLERS = {"bodies": 16, "bombs": 2, "files": 2, "feeds": 200}
PAUSE_SECONDS = {"bodies": 0.2, "bombs": 0.5, "files": 0.5, "feeds": 5.0}  # the response to a refused feed asks for 5 s
TEMPLATE_MODEL = "template"


async def main(kind: str, port: str, token: str) -> None:
    address = Address(port=int(port), token="wrong" if kind == "bodies" else token)
    if kind == "files":
        requests = await _files(address)
    else:
        requests = {"bodies": _bodies, "bombs": _bombs, "feeds": _feeds}[kind](address)
    call_all(
        address,
        requests,
        num_callers=NUM_CALLERS[kind],
        pause_seconds=PAUSE_SECONDS[kind],
        on_cycle=lambda: print("cycle", flush=True),
    )
    print("calling", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    os._exit(0)


def call_all(
    address: Address,
    requests: Sequence[bytes],
    *,
    num_callers: int,
    pause_seconds: float,
    on_cycle: Callable[[], None],
) -> list[asyncio.Task[None]]:
    """Starts callers that never end. Calls `on_cycle` once, when each request has been answered."""
    unanswered = set(range(len(requests)))

    def answered(number: int) -> None:
        if unanswered:
            unanswered.discard(number)
            if not unanswered:
                on_cycle()

    numbered = list(enumerate(requests))
    firsts = [caller * len(requests) // num_callers for caller in range(num_callers)]
    callers = [
        asyncio.create_task(_call(address, numbered[first:] + numbered[:first], answered, pause_seconds))
        for first in firsts
    ]
    for caller in callers:
        caller.add_done_callback(asyncio.Task.result)  # a caller ends only with an error, which this raises
    return callers


async def _call(
    address: Address,
    requests: Sequence[tuple[int, bytes]],
    answered: Callable[[int], None],
    pause_seconds: float,
) -> None:
    for number, request in cycle(requests):
        with suppress(ConnectionError):  # the server closes the connection of a refused request
            reader, writer = await asyncio.open_connection("127.0.0.1", address.port)
            answer = asyncio.create_task(_read(reader, partial(answered, number)))
            with suppress(ConnectionError):
                for start in range(0, len(request), CHUNK_BYTES):
                    if answer.done():
                        break  # sending the rest would only take this process time
                    writer.write(request[start : start + CHUNK_BYTES])
                    await writer.drain()
            await answer
            writer.close()
        await asyncio.sleep(pause_seconds)


async def _read(reader: asyncio.StreamReader, answered: Callable[[], None]) -> None:
    chunk = b""
    with suppress(ConnectionError):  # a request was refused before its end
        chunk = await reader.read(MIB)
    if not chunk.startswith(b"HTTP/1.1 429"):
        answered()
    with suppress(ConnectionError):
        while chunk:
            chunk = await reader.read(MIB)


def _bodies(address: Address) -> list[bytes]:
    """Returns requests with large bodies and a wrong key, for the gateway and for the rest of the API."""
    return [post(address, path, bytes(8 * MIB)) for path in ("/v1/chat/completions", "/v1/files", "/v1/batches")]


def _bombs(address: Address) -> list[bytes]:
    """Returns requests with a valid key, whose small bodies are expensive to read."""
    many_lists = b'{"model": "%s", "messages": [' % MODEL.encode() + b"[]," * MIB + b"[]]}"
    grammar = json.dumps({"model": MODEL, "messages": [], "response_format": _bomb_grammar()}).encode()
    requests = [
        post(address, path, content)
        for path in ("/v1/chat/completions", "/v1/batches")
        for content in (b"[" * MIB, many_lists, grammar)
    ]
    return [*requests, post(address, "/v1/batches", gzip.compress(bytes(256 * MIB)), "Content-Encoding: gzip")]


def _bomb_grammar() -> dict[str, object]:
    schema: dict[str, object] = {}
    for _ in range(100):
        schema = {"anyOf": [schema, {"type": "string", "pattern": "(a+)+" * 50}]}
    return {"type": "json_schema", "json_schema": {"name": "bomb", "schema": schema}}


def _feeds(address: Address) -> list[bytes]:
    return [read(address, "/v1/events", "Accept: text/event-stream")]


async def _files(address: Address) -> list[bytes]:
    """Uploads hostile files. Returns: requests whose processing reads these files, one of them for a model whose chat
    template never ends.
    """
    chat = {"messages": [{"role": "user", "content": "hello"}]}
    row = {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions"}
    grammar = {**row, "body": {**chat, "model": "pretended", "response_format": _bomb_grammar()}}
    files = {
        "nesting": b"[" * MIB,
        "one line": b'{"messages": "' + b"x" * (64 * MIB) + b'"}\n',
        "tiny lines": b"{}\n" * MIB,
        "many keys": json.dumps({str(number): 0 for number in range(10**6)}).encode(),
        "grammar": b"".join(json.dumps({**grammar, "custom_id": str(n)}).encode() + b"\n" for n in range(200)),
    }
    ids = {name: await _upload(address, content) for name, content in files.items()}
    datasets = [post(address, "/v1/datasets", json.dumps({"file_id": file_id}).encode()) for file_id in ids.values()]
    rendered = await _upload(address, json.dumps(chat).encode() + b"\n")
    template = {"file_id": rendered, "model": TEMPLATE_MODEL}
    batch = {"input_file_id": ids["grammar"], "endpoint": row["url"], "completion_window": "24h"}
    return [
        *datasets,
        post(address, "/v1/datasets", json.dumps(template).encode()),
        post(address, "/v1/batches", json.dumps(batch).encode()),
    ]


async def _upload(address: Address, content: bytes) -> str:
    head = b'--b\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--b\r\n'
    part = b'Content-Disposition: form-data; name="file"; filename="rows.jsonl"\r\n\r\n'
    body = head + part + content + b"\r\n--b--\r\n"
    status, answer = await response(
        address, post(address, "/v1/files", body, content_type="multipart/form-data; boundary=b")
    )
    if status != 200:
        raise RuntimeError(f"the upload failed: {answer.decode()}")
    return str(json.loads(answer)["id"])


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
