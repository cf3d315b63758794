"""Measures the time and the memory that the gateway needs, with a pretended engine behind it.

    python -m benchmarks.gateway [--database-url postgresql://ROLE@HOST/NAME] [--streams 500]

The database must be empty; the command migrates it and does not clean it up. The default is SQLite in a temporary
folder. The gateway is one process of uvicorn with its real database; the pretended engine and the callers that hold
streams open are other processes. The command prints one line of JSON:

    added_ms_p50, added_ms_p99      time to the first event through the gateway, minus the median time without it
    events_per_core_second          events that the gateway passes on, one at a time, in a second of processor time
    bytes_per_stream                growth of the gateway's memory, divided by the number of open streams
    threads, files, connections, mib   used by the gateway while the streams are open; mib: memory in MiB
    alone_ms_p95, beside_ms_p95     another organization's time to the first event, and its time for a read of the API:
                                    before the streams are opened, and while they are open
"""

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from benchmarks.gateway.installation import MODEL, fill, variables
from benchmarks.gateway.load import Address, completion, num_events, read, seconds_to_first_byte
from benchmarks.gateway.server import ROOT, Process, gateway, helper, raise_file_limit

NUM_REQUESTS = 500
NUM_READS = 200
PACED_STREAMS, PACED_EVENTS, PACE_MS = 50, 150, 20  # slow enough that no two events of a stream arrive together


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gateway", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--database-url", help="an empty PostgreSQL database (default: SQLite)")
    parser.add_argument("--streams", type=int, default=500)
    options = parser.parse_args()
    raise_file_limit()
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= variables(Path(folder), options.database_url)
        sys.path.insert(0, str(ROOT / "platform"))
        import django

        django.setup()
        print(json.dumps(asyncio.run(_measure(Path(folder), options.database_url, options.streams))))
    return 0


async def _measure(folder: Path, database_url: str | None, num_streams: int) -> dict[str, Any]:
    async with helper("engine") as engine_port:
        first, second = await asyncio.to_thread(fill, folder, int(engine_port))
        async with gateway(dict(os.environ), folder / "gateway.log") as (port, process):
            direct = Address(port=int(engine_port), token="t")
            ours, theirs = Address(port=port, token=first), Address(port=port, token=second)
            return {
                "database": "sqlite" if database_url is None else "postgresql",
                **await _latency(direct, ours),
                **await _throughput(ours, process),
                **await _streams(ours, theirs, process, num_streams, folder, database_url),
            }


async def _latency(direct: Address, ours: Address) -> dict[str, float]:
    """Measures requests one after the other, alternately without and with the gateway."""
    plain: list[float] = []
    through: list[float] = []
    for number in range(NUM_REQUESTS + 20):
        for seconds, address in ((plain, direct), (through, ours)):
            took = await seconds_to_first_byte(address, completion(address, model=MODEL, num_events=1))
            if number >= 20:  # the first requests open connections and load code
                seconds.append(1000 * took)
    added = [took - statistics.median(plain) for took in through]
    quantiles = statistics.quantiles(added, n=100)
    return {"added_ms_p50": round(statistics.median(added), 2), "added_ms_p99": round(quantiles[98], 2)}


async def _throughput(ours: Address, process: Process) -> dict[str, float]:
    before = process.cpu_seconds
    request = completion(ours, model=MODEL, num_events=PACED_EVENTS, pause_ms=PACE_MS)
    passed = sum(await asyncio.gather(*(num_events(ours, request) for _ in range(PACED_STREAMS))))
    assert passed == PACED_STREAMS * (PACED_EVENTS + 1), "events were lost"
    return {"events_per_core_second": round(passed / (process.cpu_seconds - before))}


async def _streams(
    ours: Address, theirs: Address, process: Process, num_streams: int, folder: Path, database_url: str | None
) -> dict[str, Any]:
    alone, before = await _p95(theirs), process.rss_bytes
    async with helper("crowd", ours.port, ours.token, MODEL, num_streams):
        await asyncio.sleep(1.0)  # until the gateway has written the usage records of the opened streams
        used = {
            "streams": num_streams,
            "bytes_per_stream": round((process.rss_bytes - before) / num_streams),
            "threads": process.num_threads,
            "files": process.num_files,
            "connections": process.num_connections(sqlite_path=folder / "slipstream.sqlite3")
            if database_url is None
            else process.num_connections(port=urlsplit(database_url).port or 5432),
            "mib": round(process.rss_bytes / 2**20),
        }
        return {**used, "alone_ms_p95": alone, "beside_ms_p95": await _p95(theirs)}


async def _p95(address: Address) -> dict[str, float]:
    requests = {
        "first event": completion(address, model=MODEL, num_events=1),
        "read": read(address, "/v1/deployments"),
    }
    found = {}
    for name, request in requests.items():
        took = [1000 * await seconds_to_first_byte(address, request) for _ in range(NUM_READS)]
        found[name] = round(statistics.quantiles(took, n=20)[-1], 1)
    return found


if __name__ == "__main__":
    sys.exit(main())
