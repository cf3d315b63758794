"""`python -m tests.engine.server.hostile --requests 10000` sends hostile requests to a server with a tiny model.

The run passes if the server returns no internal error, answers the valid requests among the hostile ones, is healthy
and idle afterwards, and needs no more memory in the second half of the requests than in the first.
"""

import argparse
import asyncio
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.engine.openai.tool_model import make_tool_model
from tests.engine.server.attacks import Attack, attack
from tests.engine.server.child import Child, running

CONCURRENCY = 16
ANSWER_SECONDS = 60.0
GROWTH_BYTES = 64 << 20  # tolerated growth of memory, because allocators keep some memory without a leak
# A response with one of these error codes is a fault of the server.
_FAULTS = (b'"code":"internal_error"', b'"code":"generation_failed"', b'"code":"engine_unavailable"')
_OPTIONS = ("--drafter", "ngram", "--max-body-bytes", "262144", "--max-batch-size", "8", "--max-waiting", "24")


@dataclass(slots=True)
class Outcome:
    statuses: Counter[str] = field(default_factory=Counter)  # number of requests, by kind of attack and status
    faults: list[str] = field(default_factory=list)  # descriptions with the seeds that reproduce the faults
    resident_bytes: list[int] = field(default_factory=list)  # memory of the server after each tenth of the requests


def start(folder: Path) -> AbstractContextManager[Child]:
    model_dir = make_tool_model(folder / "tiny")
    roots = ("--speculator-root", str(folder), "--adapter-root", str(folder))
    return running(model_dir, *_OPTIONS, *roots)


async def run_attacks(server: Child, *, first_seed: int, num_requests: int) -> Outcome:
    outcome = Outcome()
    for tenth in range(10):
        first, last = num_requests * tenth // 10, num_requests * (tenth + 1) // 10
        seeds = iter(range(first_seed + first, first_seed + last))
        await asyncio.gather(*(_try_each(server, seeds, outcome) for _ in range(CONCURRENCY)))
        outcome.resident_bytes.append(server.resident_bytes)
    return outcome


async def _try_each(server: Child, seeds: Iterator[int], outcome: Outcome) -> None:
    for seed in seeds:
        await _try(server, seed, outcome)


async def _try(server: Child, seed: int, outcome: Outcome) -> None:
    planned = attack(seed)
    try:
        async with asyncio.timeout(ANSWER_SECONDS if planned.is_complete else 0.5):
            response = await _exchange(server.port, planned)
    except TimeoutError:
        outcome.statuses[f"{planned.name}: disconnected after a while"] += 1
        if planned.is_complete:
            outcome.faults.append(f"seed {seed} ({planned.name}): no answer within {ANSWER_SECONDS:.0f} s")
        return
    status = response[9:12].decode("latin-1") if response.startswith(b"HTTP/1.1 ") else "none"
    outcome.statuses[f"{planned.name}: {status}"] += 1
    broken = status.startswith("5") or any(fault in response for fault in _FAULTS)
    if broken or (planned.canary and status not in ("200", "429")):
        outcome.faults.append(f"seed {seed} ({planned.name}): {response[:300]!r}")


async def _exchange(port: int, planned: Attack) -> bytes:
    """Sends the request and returns the bytes that are received before either side disconnects."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    response = b""
    try:
        with suppress(ConnectionError):
            for piece in planned.sent:
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(0.002)
            while planned.read_bytes is None or len(response) < planned.read_bytes:
                piece = await reader.read(65536)
                if not piece:
                    break
                response += piece
    finally:
        writer.transport.abort()
    return response


def problems_after(server: Child, outcome: Outcome) -> list[str]:
    """Waits up to 30 seconds for the engine to become idle, and returns all faults of the server."""
    problems = list(outcome.faults)
    gauges = ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc")
    deadline = time.monotonic() + 30
    while any(server.metric(name) for name in gauges) and time.monotonic() < deadline:
        time.sleep(0.1)
    problems += [f"{name} is {value}" for name in gauges if (value := server.metric(name))]
    if (health := server.get("/health")).status_code != 200:
        problems.append(f"unhealthy: {health.text}")
    half = len(outcome.resident_bytes) // 2
    growth = max(outcome.resident_bytes[half:]) - max(outcome.resident_bytes[:half])
    if growth > GROWTH_BYTES:
        problems.append(f"grew by {growth >> 20} MiB, the limit is {GROWTH_BYTES >> 20}")
    return problems


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.engine.server.hostile", description=__doc__)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument(
        "--seed", type=int, default=0, help="seed of the first request; each further request has the next seed"
    )
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, start(Path(folder)) as server:
        started = time.monotonic()
        outcome = asyncio.run(run_attacks(server, first_seed=args.seed, num_requests=args.requests))
        seconds = time.monotonic() - started
        problems = problems_after(server, outcome)
    for name, count in sorted(outcome.statuses.items()):
        print(f"{count:6}  {name}")
    sizes = ", ".join(f"{size >> 20}" for size in outcome.resident_bytes)
    print(f"{args.requests} requests in {seconds:.0f} s; resident MiB after each tenth: {sizes}")
    print("\n".join(problems) or "no fault")
    sys.exit(bool(problems))


if __name__ == "__main__":
    main()
