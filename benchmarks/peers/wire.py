"""The protocol between the benchmark command and the runner of an engine: one JSON object per line.

    runner ─▶ {"ready": {"engine": "vllm", "version": "0.32.0"}}
    command ─▶ {"prompts": [[1, 2]], "max_tokens": 128, "concurrency": 8}
    runner ─▶ {"outputs": [[3, 4]], "seconds": 1.5, ...}        or {"error": "..."}

Runners use other Python environments than the command, so this module imports only the standard library. The output of
the engines is redirected to standard error, so that standard output contains only replies.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Job:
    prompts: list[list[int]]
    max_tokens: int
    concurrency: int  # number of prompts that are answered at the same time


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    outputs: list[list[int]]  # generated token ids, in the order of the prompts
    seconds: float  # wall time of the whole job
    ttft_seconds: list[float]  # time to first token of each prompt, from its submission
    acceptance_length: float | None  # as `acceptance_length()` computes it; None if the engine does not report it
    prefill_seconds: float | None = None  # time of the passes that read prompts, if the engine reports it

    @property
    def num_tokens(self) -> int:
        return sum(map(len, self.outputs))

    @property
    def tokens_per_second(self) -> float:
        return self.num_tokens / self.seconds


class Runner(Protocol):
    about: dict[str, str]

    def answer(self, job: Job) -> Answers: ...


Advance = tuple[int, list[int], bool]  # number of the prompt, new tokens of its answer, whether the answer has ended


def closed_loop(job: Job, add: Callable[[int, list[int]], None], step: Callable[[], Iterable[Advance]]) -> Answers:
    """Answers the job with an engine that is called step by step. Whenever an answer ends, the next prompt is added.

    Args:
        add: adds a prompt to the engine, given its number and its token ids.
        step: runs one pass of the engine and returns the progress of each answer.
    """
    outputs: list[list[int]] = [[] for _ in job.prompts]
    num_passes = [0] * len(outputs)
    added, first = [0.0] * len(outputs), [0.0] * len(outputs)
    num_added = num_finished = 0
    started = time.perf_counter()
    while num_finished < len(outputs):
        while num_added < len(outputs) and num_added - num_finished < job.concurrency:
            added[num_added] = time.perf_counter()
            add(num_added, job.prompts[num_added])
            num_added += 1
        for number, tokens, ended in step():
            if tokens and not outputs[number]:
                first[number] = time.perf_counter()
            outputs[number] += tokens
            num_passes[number] += bool(tokens)
            num_finished += ended
    return Answers(
        outputs=outputs,
        seconds=time.perf_counter() - started,
        ttft_seconds=[end - begin for begin, end in zip(added, first, strict=True)],
        acceptance_length=acceptance_length(outputs, num_passes),
    )


def acceptance_length(outputs: list[list[int]], num_passes: list[int]) -> float | None:
    """Returns tokens per pass. The first pass and the first token of each answer do not count, because that pass reads
    the prompt. Returns None if no passes are left.
    """
    tokens, passes = sum(map(len, outputs)) - len(outputs), sum(num_passes) - len(num_passes)
    return tokens / passes if passes > 0 else None


def serve(make: Callable[[dict[str, Any]], Runner]) -> None:
    """The main loop of a runner's process. It reads jobs from standard input until that is closed.

    make: makes the runner from its settings, which are given as JSON in the only argument of the process.
    """
    replies = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    runner = make(json.loads(sys.argv[1]))
    print(json.dumps({"ready": runner.about}), file=replies)
    for line in sys.stdin:
        try:
            reply = asdict(runner.answer(Job(**json.loads(line))))
        except Exception as error:  # the command reports this peer's failure and continues with the others
            reply = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(reply), file=replies)
