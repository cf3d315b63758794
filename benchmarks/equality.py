"""Checks that answers with a drafter equal the answers without it, token for token, for every available drafter.

    python -m benchmarks.equality [--speculator DIR ...] [--prompts FILE.jsonl]

Plain answers are generated without a drafter, once for each sampling method. Their requests are shuffled and run at
another batch size, so that the batches differ from the batches with drafters. Then the same prompts are answered with
each combination of drafter, sampling method, batch size (16 or 1) and draft shape (chains within a fixed draft budget,
or trees within an adaptive one). The command prints a line of JSON for each combination:

    {"drafter": "ngram", "sampling": "greedy", "batch_size": 16, "shape": "tree", "budget": null,
     "prompts": 200, "equal": 200, "first_divergence": [], "accepted": 3120, ...}

The last line is a summary. `first_divergence` lists {"custom_id", "position"} of every answer that differs, where
`position` is the index of the first different token. `accepted` is the number of accepted draft tokens; if it is small,
equal answers prove little. The exit code is 0 only if all answers are equal.
"""

import argparse
import json
import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product, zip_longest
from pathlib import Path
from typing import Any

from benchmarks.shapes import SHAPES
from benchmarks.workload import (
    WITHOUT_WEIGHTS,
    Prompt,
    WorkloadError,
    add_engine,
    arguments,
    read_prompts,
    speculator_kind,
)
from engine.config import EngineConfig
from engine.drafters.base import Drafter
from engine.errors import EngineError
from engine.generate import generate
from engine.load import load_drafter, load_model
from engine.loop import Engine
from engine.models.base import Model
from engine.request import Completion, Request, SamplingParams
from engine.tokenizer import Tokenizer
from examples.prepare_model import ModelNotFoundError, prepare

SAMPLINGS = {  # max_tokens is only a placeholder, which each request replaces
    "greedy": SamplingParams(max_tokens=1, temperature=0.0),
    "T=0.8": SamplingParams(max_tokens=1, temperature=0.8),
    "top-p 0.9": SamplingParams(max_tokens=1, temperature=0.8, top_p=0.9),
}
_FIXED_BUDGET = 8
_PLAIN_BATCH_SIZE = 11  # differs from the batch sizes with a drafter


@dataclass(frozen=True, slots=True, kw_only=True)
class Combination:
    drafter: str
    speculator: Path | None
    sampling: str
    batch_size: int
    shape: str
    budget: int | None  # None for an adaptive budget


def first_difference(left: Sequence[int], right: Sequence[int]) -> int | None:
    """Returns the first index at which the sequences differ; the end of the shorter one counts as a difference."""
    for position, (left_token, right_token) in enumerate(zip_longest(left, right)):
        if left_token != right_token:
            return position
    return None


def compare(prompts: Sequence[Prompt], plain: Sequence[Completion], drafted: Sequence[Completion]) -> dict[str, Any]:
    divergences = [
        {"custom_id": prompt.custom_id, "position": position}
        for prompt, left, right in zip(prompts, plain, drafted, strict=True)
        if (position := first_difference(left.token_ids, right.token_ids)) is not None
    ]
    return {
        "prompts": len(prompts),
        "equal": len(prompts) - len(divergences),
        "first_divergence": divergences,
        "tokens": sum(len(answer.token_ids) for answer in drafted),
        "drafted": sum(answer.speculation.num_draft_tokens for answer in drafted),
        "accepted": sum(answer.speculation.num_accepted_draft_tokens for answer in drafted),
    }


class Trial:
    """The model, the prompts, and the answers without a drafter, which every combination is compared with."""

    def __init__(self, args: argparse.Namespace, model_dir: Path, model: Model) -> None:
        self._args, self._model_dir, self._model = args, model_dir, model
        max_prompt_len = min(args.max_seq_len, model.max_positions) - args.max_tokens
        tokenizer = Tokenizer.load(model_dir)
        self.prompts = read_prompts(
            args.prompts, tokenizer, max_seq_len=max_prompt_len, limit=max(args.num_prompts_by_batch_size.values())
        )
        self._plain = {sampling: self._plain_answers(sampling) for sampling in args.sampling}

    def run(self, combination: Combination) -> dict[str, Any]:
        """Raises: EngineError: the drafter cannot be loaded."""
        drafter = load_drafter(combination.drafter, self._model, combination.speculator, model_dir=self._model_dir)
        prompts = self.prompts[: self._args.num_prompts_by_batch_size[combination.batch_size]]
        engine = self._engine(SHAPES[combination.shape](drafter), combination.batch_size, combination.budget)
        answers = generate(engine, self._requests(combination.sampling)[: len(prompts)])
        settings = {
            "drafter": combination.drafter,
            "sampling": combination.sampling,
            "batch_size": combination.batch_size,
            "shape": combination.shape,
            "budget": combination.budget,
        }
        return settings | compare(prompts, self._plain[combination.sampling][: len(prompts)], answers)

    def _plain_answers(self, sampling: str) -> list[Completion]:
        requests = self._requests(sampling)
        order = random.Random(sampling).sample(range(len(requests)), len(requests))
        drafter = load_drafter("none", self._model, None)
        answers = generate(self._engine(drafter, _PLAIN_BATCH_SIZE, None), [requests[i] for i in order])
        answer_of = dict(zip(order, answers, strict=True))
        return [answer_of[i] for i in range(len(requests))]

    def _requests(self, sampling: str) -> list[Request]:
        length, sampled = self._args.max_tokens, SAMPLINGS[sampling]
        return [
            Request(f"{number}", prompt.token_ids, replace(sampled, max_tokens=length, seed=number), memory="benchmark")
            for number, prompt in enumerate(self.prompts)
        ]

    def _engine(self, drafter: Drafter, batch_size: int, budget: int | None) -> Engine:
        config = EngineConfig(
            max_batch_size=batch_size,
            max_seq_len=self._args.max_seq_len,
            draft_budget=budget,
            weights=self._args.weights,
        )
        return Engine(self._model, drafter, config)


def combinations(args: argparse.Namespace) -> Iterator[Combination]:
    """Raises: WorkloadError: a folder does not contain a speculator."""
    drafters: list[tuple[str, Path | None]] = [(name, None) for name in WITHOUT_WEIGHTS]
    for folder in args.speculator:
        kind = speculator_kind(folder)
        drafters += [(kind, folder), (f"{kind}+suffix", folder)]
    requested = [(name, folder) for name, folder in drafters if not args.drafter or name in args.drafter]
    if unknown := set(args.drafter) - {name for name, _ in requested}:
        raise WorkloadError(f"unknown drafter: {', '.join(sorted(unknown))}; speculators need --speculator")
    shapes = list(product(SHAPES, (_FIXED_BUDGET, None))) if args.cross else [("chain", _FIXED_BUDGET), ("tree", None)]
    for (name, folder), sampling, size, (shape, budget) in product(
        requested, args.sampling, args.num_prompts_by_batch_size, shapes
    ):
        yield Combination(
            drafter=name, speculator=folder, sampling=sampling, batch_size=size, shape=shape, budget=budget
        )


def run(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Raises: WorkloadError, EngineError, ModelNotFoundError: prompts, model or a speculator cannot be used."""
    all_combinations = list(combinations(args))  # before the model is loaded, so that wrong arguments fail early
    model_dir = args.model or prepare()
    model = load_model(model_dir, dtype=args.dtype, device=args.device, weights=args.weights)
    trial = Trial(args, model_dir, model)
    for combination in all_combinations:
        yield trial.run(combination)


def main(argv: Sequence[str] | None = None) -> int:
    parser = arguments("Checks that answers with a drafter equal the answers without it, token for token.")
    speculator = "folder of a trained speculator to check too (may be repeated)"
    parser.add_argument("--speculator", type=Path, action="append", default=[], metavar="DIR", help=speculator)
    drafter = "drafter to check (may be repeated; default: ngram, suffix and those of the speculators)"
    parser.add_argument("--drafter", action="append", default=[], metavar="NAME", help=drafter)
    sampling = "sampling method to check (may be repeated; default: all)"
    parser.add_argument("--sampling", action="append", choices=SAMPLINGS, help=sampling)
    max_tokens = "maximum number of tokens of an answer (default 96)"
    parser.add_argument("--max-tokens", type=int, default=96, metavar="N", help=max_tokens)
    max_seq_len = "maximum number of tokens of a prompt with its answer (default 1024)"
    parser.add_argument("--max-seq-len", type=int, default=1024, metavar="N", help=max_seq_len)
    num_prompts = "number of prompts that are answered %s at a time (default %d)"
    parser.add_argument("--batched-prompts", type=int, default=200, metavar="N", help=num_prompts % ("16", 200))
    parser.add_argument("--single-prompts", type=int, default=24, metavar="N", help=num_prompts % ("one", 24))
    cross = "check chains and trees each with a fixed and with an adaptive draft budget"
    parser.add_argument("--cross", action="store_true", help=cross)
    add_engine(parser)
    args = parser.parse_args(argv)
    args.sampling = args.sampling or list(SAMPLINGS)
    args.num_prompts_by_batch_size = {16: args.batched_prompts, 1: args.single_prompts}
    results = []
    try:
        for result in run(args):
            print(json.dumps(result), flush=True)
            results.append(result)
    except (WorkloadError, EngineError, ModelNotFoundError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    different = sum(result["prompts"] - result["equal"] for result in results)
    print(json.dumps({"arms": len(results), "answers": sum(r["prompts"] for r in results), "different": different}))
    return int(different > 0)


if __name__ == "__main__":
    sys.exit(main())
