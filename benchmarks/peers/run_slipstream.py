"""Runner of our engine.

Settings: model; max_batch_size; max_seq_len; drafter; speculator, a folder or None; weights, "int8" for quantized
weights, or any other value for weights in the model's own dtype; draft_budget, the number of draft tokens per pass, or
None to adapt it.
"""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import torch

from benchmarks.peers.wire import Advance, Answers, Job, closed_loop, serve
from engine.config import EngineConfig
from engine.load import load_engine
from engine.request import Request, SamplingParams


class Slipstream:
    def __init__(self, settings: dict[str, Any]) -> None:
        speculator = settings.get("speculator")
        self._engine = load_engine(
            Path(settings["model"]),
            drafter=settings["drafter"],
            speculator_dir=Path(speculator) if speculator else None,
            config=EngineConfig(
                max_batch_size=settings["max_batch_size"],
                max_seq_len=settings["max_seq_len"],
                weights="int8" if settings["weights"] == "int8" else "auto",
                draft_budget=settings.get("draft_budget"),
            ),
        )
        self._job = count()
        self.about = {"engine": "slipstream", "version": f"torch {torch.__version__}"}

    def answer(self, job: Job) -> Answers:
        engine, prefix = self._engine, next(self._job)
        sampling = SamplingParams(max_tokens=job.max_tokens, temperature=0.0)

        def add(number: int, prompt: list[int]) -> None:
            engine.add(Request(f"{prefix}/{number}", tuple(prompt), sampling, memory="benchmark"))

        def step() -> Iterator[Advance]:
            for output in engine.step():
                number = int(output.request_id.partition("/")[2])
                yield number, list(output.token_ids), output.finish_reason is not None

        before = engine.phase_seconds["prefill"]
        answers = closed_loop(job, add, step)
        return replace(answers, prefill_seconds=engine.phase_seconds["prefill"] - before)


if __name__ == "__main__":
    serve(Slipstream)
