"""`python -m tests.engine.server.soak --seconds 300 --streams 64` reads 64 concurrent streams for 300 seconds.

Every client sends its next prompt as soon as its answer ends, and disconnects in the middle of every sixteenth answer.
The soak passes if each answer that is read to its end is complete, and if the server's memory does not grow by more
than GROWTH from the second to the last quarter of the time.
"""

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2

from tests.engine.server.child import TOKEN, Child, running
from tests.tiny_model import make_tiny_model

GROWTH = 0.03  # relative to the memory in the second quarter; tolerated, because allocators keep some memory


@dataclass(slots=True)
class Tally:
    num_answers: int = 0
    num_disconnected: int = 0
    num_chunks: int = 0
    faults: list[str] = field(default_factory=list)
    resident_bytes: list[int] = field(default_factory=list)  # memory of the server, measured once a second


async def soak(server: Child, *, num_streams: int, seconds: float, max_tokens: int) -> Tally:
    tally, until = Tally(), time.monotonic() + seconds
    headers = {"authorization": f"Bearer {TOKEN}"}
    limits = httpx2.Limits(max_connections=num_streams)
    async with httpx2.AsyncClient(base_url=server.url, headers=headers, timeout=120, limits=limits) as http:
        readers = [_read(http, number, until, max_tokens, tally) for number in range(num_streams)]
        await asyncio.gather(_sample(server, until, tally), *readers)
    return tally


async def _sample(server: Child, until: float, tally: Tally) -> None:
    while time.monotonic() < until:
        tally.resident_bytes.append(server.resident_bytes)
        await asyncio.sleep(1.0)


async def _read(http: httpx2.AsyncClient, reader: int, until: float, max_tokens: int, tally: Tally) -> None:
    round_number = 0
    while time.monotonic() < until:
        round_number += 1
        disconnects = (reader + round_number) % 16 == 0
        body: dict[str, Any] = {"stream": True, "max_tokens": max_tokens, "ignore_eos": True, "seed": round_number}
        body["messages"] = [{"role": "user", "content": f"{reader} asks for the {round_number}th time " * 4}]
        try:
            last = await _stream(http, body, stop_after=5 if disconnects else None, tally=tally)
        except httpx2.HTTPError as error:
            tally.faults.append(f"reader {reader}, round {round_number}: {error!r}")
            return
        if disconnects:
            tally.num_disconnected += 1
        elif last != ["length", "[DONE]"]:
            tally.faults.append(f"reader {reader}, round {round_number}: ended with {last}")
        else:
            tally.num_answers += 1


async def _stream(http: httpx2.AsyncClient, body: dict[str, Any], *, stop_after: int | None, tally: Tally) -> list[str]:
    """Returns the stream's finish reason and its last event. Disconnects after `stop_after` chunks, if given."""
    ending: list[str] = []
    num_chunks = 0
    async with http.stream("POST", "/v1/chat/completions", json=body) as response:
        response.raise_for_status()
        async for line in response.aiter_lines():
            if not line.startswith("data: "):
                continue
            num_chunks += 1
            event = line.removeprefix("data: ")
            if event == "[DONE]":
                ending.append(event)
            elif '"finish_reason":null' not in event:
                chunk = json.loads(event)
                ending.append(chunk["choices"][0]["finish_reason"] if "choices" in chunk else event)
            if stop_after is not None and num_chunks >= stop_after:
                break
    tally.num_chunks += num_chunks
    return ending


def problems_of(tally: Tally) -> list[str]:
    problems = list(tally.faults)
    quarter = len(tally.resident_bytes) // 4
    before = statistics.median(tally.resident_bytes[quarter : 2 * quarter])
    after = statistics.median(tally.resident_bytes[3 * quarter :])
    if after > before * (1 + GROWTH):
        problems.append(f"grew from {before / 2**20:.0f} to {after / 2**20:.0f} MiB, the limit is {GROWTH:.0%}")
    return problems


@contextmanager
def _server(model_dir: Path | None, num_streams: int, drafter: str) -> Iterator[Child]:
    # A small cache is soon filled, so later growth of memory is a leak.
    options = ["--drafter", drafter, "--max-batch-size", "16", "--max-waiting", str(num_streams)]
    options += ["--kv-cache-bytes", str(96 << 20)]
    with tempfile.TemporaryDirectory() as folder:
        model_dir = model_dir or make_tiny_model(Path(folder) / "tiny")
        with running(model_dir, *options) as server:
            yield server


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.engine.server.soak", description=__doc__)
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--max-tokens", type=int, default=200)
    parser.add_argument("--drafter", default="ngram")
    parser.add_argument("--model-dir", type=Path, help="default: a tiny random model")
    args = parser.parse_args()
    with _server(args.model_dir, args.streams, args.drafter) as server:
        tally = asyncio.run(soak(server, num_streams=args.streams, seconds=args.seconds, max_tokens=args.max_tokens))
    sizes = tally.resident_bytes
    samples = ", ".join(f"{size >> 20}" for size in sizes[:: max(1, len(sizes) // 20)])
    print(f"{args.streams} streams for {args.seconds:.0f} s: {tally.num_answers} answers read to their end,")
    print(f"{tally.num_disconnected} disconnected early, {tally.num_chunks} chunks; resident MiB over time: {samples}")
    problems = problems_of(tally)
    print("\n".join(problems) or "no growth and no fault")
    sys.exit(bool(problems))


if __name__ == "__main__":
    main()
