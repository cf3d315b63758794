"""Runs a day of a deployment with a real model, and judges it: `make day`.

    python -m benchmarks.day [--streams 200] [--folder build/day]

The command starts an installation of its own (`manage.py up`) and uses it through the public API, as a customer would:
a pipeline trains and deploys a speculator for SmolLM2; a rush of requests gets a second replica; the idle deployment
sleeps, and a request wakes it; the prompts change their domain, and the acceptance length falls; the loop notices that,
trains another speculator on captured requests, and promotes it; at last, a speculator with noise for weights is tried
in shadow mode, and rolled back. Each answer is compared with the plain answer to the same request, from a batch
without speculation.

Prints the verdicts, and writes `day.json` (all observations) and `day.png` to the folder. The exit code is 1 if a
request was lost or changed, or a verdict is wrong, and 2 if the day could not be run. The verdicts rest on answers and
acceptance lengths; times are only reported.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from benchmarks.day.drawing import cost_over_time, draw
from benchmarks.day.plan import MIN_STREAMS, NUM_STREAMS, PRICE_PER_HOUR, Plan
from benchmarks.day.records import Day
from benchmarks.day.story import Story
from benchmarks.day.verdicts import Verdict, verdicts
from benchmarks.report import Machine
from examples.prepare_model import MODEL_NAME, ModelNotFoundError, prepare
from examples.stack import ROOT, Stack, StackError
from slipstream import Client, SlipstreamError

_SETTINGS = {"SLIPSTREAM_SUFFIX_DECODING": "false"}  # the acceptance length is then that of the speculator alone

_START_SECONDS = 600.0  # the migrations alone took two minutes on a busy machine


def run(plan: Plan, folder: Path) -> Day:
    """Raises: ModelNotFoundError, StackError, SlipstreamError."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    model = prepare()
    os.environ.update(_SETTINGS)
    day = Day(machine=asdict(Machine.now()), num_streams=plan.num_streams, started_at=time.time())
    with Stack(folder / "data", models={MODEL_NAME: model}) as stack:
        address = stack.wait_until_ready(_START_SECONDS)
        _set_price(stack.data_dir)
        with Client(address.base_url, address.api_key) as client:
            try:
                Story(client, plan, day, folder).run()
            except SlipstreamError:
                print(stack.log_tail("jobs", "endpoints"), file=sys.stderr)
                raise
            finally:
                day.steps.append(("end", time.time()))
                (folder / "day.json").write_text(json.dumps(day.as_json(), indent=1), encoding="utf-8")
    return day


def _set_price(data_dir: Path) -> None:
    """Sets the price of device time, as an operator does."""
    command = [sys.executable, "manage.py", "device_price_set", "cpu", str(PRICE_PER_HOUR)]
    environment = os.environ | {"SLIPSTREAM_DATA_DIR": str(data_dir)}
    subprocess.run(command, cwd=ROOT, env=environment, check=True, stdout=subprocess.DEVNULL)


def report(day: Day, judged: Sequence[Verdict]) -> str:
    """Returns the verdicts and the figures of the day as text."""
    lines = [f"{'right' if each.is_right else 'WRONG'}  {each.name}: {each.finding}" for each in judged]
    first = sorted(stream.first_token_seconds for stream in day.streams if stream.first_token_seconds is not None)
    if first:
        lines.append(f"time to the first token: median {first[len(first) // 2]:.2f} s, longest {first[-1]:.2f} s")
    if costs := cost_over_time(day):
        lines.append(f"cost: {costs[-1][1]:.3f} USD at {PRICE_PER_HOUR:.2f} USD for an hour of a device")
    lines.append(f"the day took {(day.steps[-1][1] - day.started_at) / 60:.1f} minutes")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.day", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--streams", type=int, default=NUM_STREAMS, metavar="N", help="default: %(default)s")
    folder = ROOT / "build" / "day"
    parser.add_argument("--folder", type=Path, default=folder, metavar="DIR", help="emptied first; default: build/day")
    args = parser.parse_args(argv)
    if args.streams < MIN_STREAMS:
        parser.error(f"--streams must be at least {MIN_STREAMS}, got {args.streams}")
    try:
        day = run(Plan(num_streams=args.streams), args.folder.resolve())
    except (ModelNotFoundError, StackError, SlipstreamError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("stopped; nothing is left running", file=sys.stderr)
        return 130
    judged = verdicts(day)
    draw(day, args.folder / "day.png")
    print(report(day, judged))
    print(f"Observations: {args.folder / 'day.json'}   Plot: {args.folder / 'day.png'}")
    return 0 if all(each.is_right for each in judged) else 1


if __name__ == "__main__":
    sys.exit(main())
