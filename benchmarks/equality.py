"""Are answers the same with a drafter as without? Compared token for token.

    python -m benchmarks.equality --model DIR --prompts FILE.jsonl --drafter medusa --speculator DIR --max-tokens 128

prints one line of JSON for each --drafter:

    {"prompts": 32, "equal": 32, "first_divergence": [], "drafter": "medusa", ...}

`first_divergence` lists {"custom_id", "position"} of every answer that differs; `position` is the first token, counted
from 0, that is not the same. The exit code is 0 only if all are equal. `--plain-batch-size 1` answers the plain arm one
at a time, so that the comparison covers batching as well.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

from benchmarks.workload import Prompt, WorkloadError, add_drafter, arguments, make_engine, read_prompts, requests
from engine.errors import EngineError
from engine.generate import generate
from engine.loop import Engine
from engine.request import Request
from engine.tokenizer import Tokenizer

Tokens = tuple[int, ...]


def first_difference(left: Sequence[int], right: Sequence[int]) -> int | None:
    """The first position at which the two differ; the end of the shorter one counts as a difference."""
    for position, (one, other) in enumerate(zip_longest(left, right)):
        if one != other:
            return position
    return None


def compare(prompts: Sequence[Prompt], plain: Sequence[Tokens], drafted: Sequence[Tokens]) -> dict[str, Any]:
    divergences = [
        {"custom_id": prompt.custom_id, "position": position}
        for prompt, left, right in zip(prompts, plain, drafted, strict=True)
        if (position := first_difference(left, right)) is not None
    ]
    return {
        "prompts": len(prompts),
        "equal": len(prompts) - len(divergences),
        "first_divergence": divergences,
        "tokens": sum(len(answer) for answer in plain),
    }


def answers(engine: Engine, work: Sequence[Request]) -> list[Tokens]:
    return [completion.token_ids for completion in generate(engine, work)]


def run(args: argparse.Namespace) -> list[dict[str, Any]]:
    """One result for each drafter asked for.

    Raises: WorkloadError, EngineError: the prompts, the model or the speculator cannot be used.
    """
    engine = make_engine(args, drafter="none", batch_size=args.plain_batch_size or args.batch_size)
    room = engine.max_seq_len - args.max_tokens
    prompts = read_prompts(args.prompts, Tokenizer.load(args.model), max_seq_len=room, limit=args.limit)
    work = requests(prompts, args)
    plain = answers(engine, work)
    results = []
    for drafter in args.drafter:
        engine = make_engine(args, drafter=drafter, batch_size=args.batch_size)
        settings = {"temperature": args.temperature, "seed": args.seed, "batch_size": args.batch_size}
        results.append(compare(prompts, plain, answers(engine, work)) | {"drafter": drafter} | settings)
    return results


def main(argv: Sequence[str] | None = None) -> int:
    parser = arguments("Compares answers with a drafter to answers without, token for token.")
    add_drafter(parser, action="append")
    parser.add_argument("--plain-batch-size", type=int, metavar="B", help="of the arm without (default: as the other)")
    try:
        results = run(parser.parse_args(argv))
    except (WorkloadError, EngineError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for result in results:
        print(json.dumps(result))
    return 0 if all(result["equal"] == result["prompts"] for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
