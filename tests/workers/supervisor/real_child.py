"""The program `workers.run` with the delays and crashes that tests need: `python real_child.py [OPTIONS] SPEC.json`.

A row with the content "crash" kills the process when the engine would get it. If the first row has the content "die at
once", the process dies while it loads the model. With `--limit`, the process answers few rows at once. Before
it waits for permission to begin another row, it reports the number of rows that it has begun.
"""

import argparse
import json
import os
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

from engine.config import EngineConfig
from engine.load import load_engine
from tests.workers.supervisor.fake_child import wait_for_permission
from workers import run
from workers.contracts import BatchSpec, Progress
from workers.emitter import EventWriter
from workers.inference.batch import engine_config
from workers.inference.rows import InputRow, prepare_row


def crash() -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


def content_of(body: Any) -> str:
    return str(body["messages"][0]["content"])


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--row-seconds", type=float, default=0.0)
    parser.add_argument("--limit", metavar="FILE", type=Path, help="begin only as many rows as FILE has bytes")
    parser.add_argument("spec", type=Path)
    arguments = parser.parse_args()

    def load_engine_or_crash(*positional: Any, **named: Any) -> Any:
        first = Path(json.loads(arguments.spec.read_text())["input_path"]).read_text().partition("\n")[0]
        if content_of(json.loads(first)["body"]) == "die at once":
            crash()
        return load_engine(*positional, **named)

    def prepare_row_or_crash(row: InputRow, **named: Any) -> Any:
        if content_of(row.body) == "crash":
            crash()
        if arguments.limit is not None and row.number >= arguments.limit.stat().st_size:
            for emit in writers:
                emit(Progress(done=row.number, total=row.number, unit="rows"))  # not delayed
        wait_for_permission(arguments.limit, row.number)
        time.sleep(arguments.row_seconds)
        return prepare_row(row, **named)

    def event_writer(*positional: Any) -> EventWriter:
        writers.append(EventWriter(*positional))
        return writers[-1]

    def few_rows(spec: BatchSpec) -> EngineConfig:
        config = engine_config(spec)
        return config if arguments.limit is None else replace(config, max_batch_size=8)

    writers: list[EventWriter] = []
    with (
        patch("workers.run.EventWriter", event_writer),
        patch("workers.inference.batch.engine_config", few_rows),
        patch("workers.inference.batch.load_engine", load_engine_or_crash),
        patch("workers.inference.batch.prepare_row", prepare_row_or_crash),
    ):
        return run.main([str(arguments.spec)])


if __name__ == "__main__":
    sys.exit(main())
