"""Measures how fast the engine answers, how many drafted tokens are accepted, and where the time is spent.

    python -m benchmarks.decode --prompts FILE.jsonl --drafter ngram --batch-size 1 --max-tokens 128

The command prints one line of JSON:

    tokens_per_second             generated tokens / wall time, including prefill
    decode_tokens_per_second      generated tokens / wall time without prefill
    acceptance_length             1 + accepted draft tokens / verify passes
    acceptance_rate_per_position  entry i is the share of passes that accepted more than i draft tokens
    phase_seconds                 wall time of each phase of the engine's step

The requests are answered --repeats times, after a warm-up. The printed values are from the run with the median time.
To compare two drafters, alternate between them (A B A B) on an idle machine.

Without --drafter, the command runs a series of measurements on a GPU (benchmarks/gpu/suite.py). The first of these
commands measures models with random weights in the shapes of well-known models; the second measures all drafters with a
real model:

    python -m benchmarks.decode --device cuda
    python -m benchmarks.decode --device cuda --model DIR --prompts FILE.jsonl
"""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.workload import WorkloadError, add_engine, arguments, read_prompts
from engine.config import EngineConfig
from engine.errors import EngineError
from engine.generate import generate
from engine.kinds import KINDS
from engine.load import load_engine
from engine.loop import Engine
from engine.request import Completion, Request, SamplingParams
from engine.tokenizer import Tokenizer
from examples.prepare_model import ModelNotFoundError, prepare


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    seconds: float
    phase_seconds: dict[str, float]
    completions: list[Completion]

    @property
    def num_tokens(self) -> int:
        return sum(len(completion.token_ids) for completion in self.completions)

    @property
    def tokens_per_second(self) -> float:
        return self.num_tokens / self.seconds

    @property
    def decode_tokens_per_second(self) -> float:
        return self.num_tokens / (self.seconds - self.phase_seconds.get("prefill", 0.0))


def acceptance(completions: Sequence[Completion]) -> tuple[float, list[float]]:
    """Returns the acceptance length, and for each i the share of passes that accepted more than i draft tokens."""
    num_passes = sum(completion.speculation.num_spec_steps for completion in completions)
    accepted = sum(completion.speculation.num_accepted_draft_tokens for completion in completions)
    longest = max((len(completion.speculation.acceptance_histogram) for completion in completions), default=0)
    # Entry j of a histogram is the number of passes that accepted exactly j tokens.
    num_accepted_more = [
        sum(sum(completion.speculation.acceptance_histogram[i + 1 :]) for completion in completions)
        for i in range(longest - 1)
    ]
    return 1 + accepted / max(1, num_passes), [count / max(1, num_passes) for count in num_accepted_more]


def measure(engine: Engine, requests: Sequence[Request]) -> Measurement:
    before = dict(engine.phase_seconds)
    started = time.perf_counter()
    completions = generate(engine, requests)
    seconds = time.perf_counter() - started
    phases = {phase: total - before[phase] for phase, total in engine.phase_seconds.items()}
    return Measurement(seconds=seconds, phase_seconds=phases, completions=completions)


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Raises: WorkloadError, EngineError, ModelNotFoundError: prompts, model or speculator cannot be used."""
    model = args.model or prepare()
    config = EngineConfig(max_batch_size=args.batch_size, weights=args.weights, dtype=args.dtype, device=args.device)
    engine = load_engine(model, drafter=args.drafter, speculator_dir=args.speculator, config=config)
    max_prompt_len = engine.max_seq_len - args.max_tokens
    prompts = read_prompts(args.prompts, Tokenizer.load(model), max_seq_len=max_prompt_len, limit=args.limit)
    sampling = SamplingParams(max_tokens=args.max_tokens, temperature=args.temperature, seed=args.seed)
    requests = [
        Request(f"{number}", prompt.token_ids, sampling, memory="benchmark") for number, prompt in enumerate(prompts)
    ]
    measure(engine, requests[: args.batch_size])  # warm-up: first passes allocate, and the draft budget adapts
    runs = []
    for _ in range(args.repeats):
        engine.drafter.forget_past()  # otherwise it could draft from the previous run's answers to the same prompts
        runs.append(measure(engine, requests))
    runs.sort(key=lambda run: run.seconds)
    median = runs[len(runs) // 2]
    length, rates = acceptance(median.completions)
    return {
        "tokens_per_second": round(median.tokens_per_second, 2),
        "decode_tokens_per_second": round(median.decode_tokens_per_second, 2),
        "acceptance_length": round(length, 3),
        "acceptance_rate_per_position": [round(rate, 4) for rate in rates],
        "phase_seconds": {phase: round(seconds, 3) for phase, seconds in median.phase_seconds.items()},
        "seconds": round(median.seconds, 3),
        "seconds_of_each_run": [round(run.seconds, 3) for run in runs],
        "tokens": median.num_tokens,
        "prompts": len(prompts),
        "drafter": args.drafter,
        "batch_size": args.batch_size,
        "max_tokens": args.max_tokens,
        "temperature": args.temperature,
        "seed": args.seed,
        "dtype": str(engine.model.dtype).removeprefix("torch."),
        "device": str(engine.model.device),
    }


def main(argv: Sequence[str] | None = None) -> int:
    argv = sys.argv[1:] if argv is None else argv
    if not any(argument.startswith(("--drafter", "-h", "--help")) for argument in argv):
        from benchmarks.gpu.suite import main as measure_all  # imported here, because it needs triton

        return measure_all(argv)
    parser = arguments("Measures tokens per second, acceptance length and the time of each phase.")
    drafters = f"one of {', '.join(KINDS)}, or several joined by +"
    parser.add_argument("--drafter", required=True, metavar="NAME", help=drafters)
    parser.add_argument("--speculator", type=Path, metavar="DIR", help="folder of a trained speculator")
    max_tokens = "maximum number of tokens of an answer"
    parser.add_argument("--max-tokens", type=int, required=True, metavar="N", help=max_tokens)
    temperature = "sampling temperature; 0 (the default) is greedy"
    parser.add_argument("--temperature", type=float, default=0.0, metavar="T", help=temperature)
    seed = "sampling seed of every answer, used if T > 0 (default 0)"
    parser.add_argument("--seed", type=int, default=0, metavar="S", help=seed)
    batch_size = "number of prompts answered at the same time (default 16)"
    parser.add_argument("--batch-size", type=int, default=16, metavar="B", help=batch_size)
    parser.add_argument("--limit", type=int, default=64, metavar="N", help="maximum number of prompts (default 64)")
    add_engine(parser)
    repeats = "number of runs; the one with the median time is printed (default 1)"
    parser.add_argument("--repeats", type=int, default=1, metavar="N", help=repeats)
    try:
        result = run(parser.parse_args(argv))
    except (WorkloadError, EngineError, ModelNotFoundError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
