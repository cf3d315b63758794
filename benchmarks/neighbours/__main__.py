"""Measures how much longer one organization waits while another one causes as much load as it can (a "noise").

    python -m benchmarks.neighbours [--database-url postgresql://OWNER@HOST/NAME] [--rounds 3] [--only NOISE]

The database must be empty; the command migrates it and does not clean it up. The default is SQLite in a temporary
folder. The processes are real: the API with the gateway, the supervisor of deployments, and the threads of a worker.
Engines, storage and receivers of webhooks are pretended, so that only code that the organizations share is measured.

Time is measured in windows without and with a noise (benchmarks/neighbours/noises.py), which alternate: quiet, noisy,
quiet, noisy, ..., quiet. A window is longer than the pauses of the noise's callers. If the noise consists of requests,
a noisy window lasts until the server has answered each of them once. Each window gives three 95th percentiles of the
quiet organization: of its reads, of its times to the first token, and of the claims of its jobs. For each noise and
percentile, the command prints the medians over the quiet and over the noisy windows in milliseconds (quiet → noisy) and
their ratio. It also prints failures: failed requests and jobs of the quiet organization, whether its engine was killed,
and processes of the installation that died. The exit code is 1 if a ratio is above 2 or anything failed.
"""

import argparse
import asyncio
import itertools
import os
import statistics
import sys
import tempfile
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.gateway.installation import MODEL, fill, variables
from benchmarks.gateway.load import Address, completion, read, seconds_to_first_byte
from benchmarks.gateway.server import ROOT, gateway, helper, raise_file_limit
from benchmarks.neighbours.claims import seconds_of_claims
from benchmarks.neighbours.noises import NOISES, TITLES, Cycle, Loud
from benchmarks.neighbours.survival import Survivors

NUM_REQUESTS, NUM_CLAIMS = 60, 30  # minimum numbers in a window
MIN_WINDOW_SECONDS, MAX_WINDOW_SECONDS = 6.0, 180.0
MAX_RATIO = 2.0
MEASURES = ("read", "first token", "claim")

P95 = dict[str, float]  # name of the measure -> milliseconds


@dataclass(slots=True)
class Windows:
    """The measurements in the windows without and with one noise."""

    quiet: list[P95] = field(default_factory=list)
    noisy: list[P95] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.neighbours", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--database-url", help="an empty PostgreSQL database that OWNER owns (default: SQLite)")
    parser.add_argument("--rounds", type=int, default=3, help="number of windows with each noise (default 3)")
    parser.add_argument("--only", choices=NOISES, action="append", help="a noise to make (default: all)")
    options = parser.parse_args()
    raise_file_limit()
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {
            **variables(Path(folder), options.database_url),
            "SLIPSTREAM_WEBHOOKS_ALLOW_PRIVATE": "true",
            "SLIPSTREAM_MAX_QUEUED_JOBS": "100000",
        }
        sys.path.insert(0, str(ROOT / "platform"))
        import django

        django.setup()
        return asyncio.run(_measure_all(Path(folder), options.only or list(NOISES), options.rounds))


async def _measure_all(folder: Path, noises: list[str], num_rounds: int) -> int:
    first, second = await asyncio.to_thread(fill, folder)
    async with AsyncExitStack() as processes:
        port, api = await processes.enter_async_context(gateway(dict(os.environ), folder / "gateway.log"))
        pids = [
            int(await processes.enter_async_context(helper(module, package="benchmarks.neighbours")))
            for module in ("supervisor", "worker")
        ]
        survivors = await asyncio.to_thread(Survivors.when_ready, second, [api.pid, *pids])
        quiet, loud = Address(port=port, token=second), Loud(Address(port=port, token=first), folder)
        await p95(quiet, [])  # opens connections and loads code
        print("| 95th percentile, ms | " + " | ".join(f"{name} (ratio)" for name in MEASURES) + " | failed |")
        print("|---" * (2 + len(MEASURES)) + "|", flush=True)
        is_good = True
        for noise in noises:
            windows = await _measure(noise, quiet, loud, num_rounds, survivors)
            is_good &= _report(TITLES[noise], windows)
    return 0 if is_good else 1


async def _measure(noise: str, quiet: Address, loud: Loud, num_rounds: int, survivors: Survivors) -> Windows:
    windows = Windows()
    windows.quiet.append(await p95(quiet, windows.failures))
    for _ in range(num_rounds):
        async with NOISES[noise](loud) as cycle:
            windows.noisy.append(await p95(quiet, windows.failures, cycle))
        windows.quiet.append(await p95(quiet, windows.failures))
    windows.failures += await asyncio.to_thread(survivors.missing)
    return windows


async def p95(quiet: Address, failures: list[str], cycle: Cycle | None = None) -> P95:
    """Measures requests and claims of the quiet organization in one window.

    cycle: ends when each request of the noise has been answered; the window lasts at least as long.
    """
    requests = {
        "read": read(quiet, "/v1/deployments"),
        "first token": completion(quiet, model=MODEL, num_events=1),
    }
    seconds: dict[str, list[float]] = {name: [] for name in requests}
    began = time.monotonic()
    for number in itertools.count(1):
        for name, request in requests.items():
            try:
                seconds[name].append(await seconds_to_first_byte(quiet, request))
            except (RuntimeError, OSError, asyncio.IncompleteReadError) as error:
                failures.append(f"{name}: {error}")
        is_cycle_over = cycle is None or cycle.done()
        elapsed = time.monotonic() - began
        if not is_cycle_over and elapsed > MAX_WINDOW_SECONDS:
            failures.append(f"a request of the noise was not answered within {MAX_WINDOW_SECONDS:g} s")
            break
        if is_cycle_over and number >= NUM_REQUESTS and elapsed > MIN_WINDOW_SECONDS:
            break
    try:
        seconds["claim"] = await asyncio.to_thread(seconds_of_claims, quiet.token, NUM_CLAIMS)
    except RuntimeError as error:
        failures.append(f"claim: {error}")
    return {name: 1000 * statistics.quantiles(found, n=20)[-1] for name, found in seconds.items() if len(found) > 1}


def _report(title: str, windows: Windows) -> bool:
    """Prints a row of the table. Returns whether nothing failed and no ratio is too high."""
    cells, worst = [], 0.0
    for name in MEASURES:
        before, after = (
            statistics.median(window.get(name, float("inf")) for window in side)
            for side in (windows.quiet, windows.noisy)
        )
        worst = max(worst, after / before)
        cells.append(f"{before:.1f} → {after:.1f} ({after / before:.2f})")
    print(f"| {title} | " + " | ".join(cells) + f" | {len(windows.failures) or 'nothing'} |", flush=True)
    for failure in windows.failures:
        print(f"{title}: {failure}", file=sys.stderr)
    return worst <= MAX_RATIO and not windows.failures


if __name__ == "__main__":
    sys.exit(main())
