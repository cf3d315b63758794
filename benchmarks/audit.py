"""Compares the time of an audit (engine/audit) with the time of plain decoding, one answer at a time.

    python -m benchmarks.audit [--model DIR] [--prompts FILE.jsonl]

Each prompt is answered without a drafter, and an audit re-scores the answer immediately afterwards, so that decoding
and audit are measured under the same load of the machine. Both times include the pass over the prompt, which is never
in the prefix cache. The command prints a line of JSON for each sampling method; `ratio` is the time of plain decoding
divided by the time of the audits:

    {"sampling": "greedy", "answers": 8, "tokens": 1024, "equal": 8, "ms_per_token_plain": ..., "ratio": ..., ...}

The exit code is 0 only if every answer is re-scored to the same tokens.
"""

import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from benchmarks.workload import Prompt, add_engine, arguments, read_prompts
from engine.config import EngineConfig
from engine.generate import generate
from engine.load import load_engine
from engine.loop import Engine
from engine.request import Completion, Request, SamplingParams
from engine.tokenizer import Tokenizer
from examples.prepare_model import prepare

SAMPLINGS = {
    "greedy": SamplingParams(max_tokens=1, temperature=0.0),
    "T=0.8": SamplingParams(max_tokens=1, temperature=0.8),
    "top-p 0.9": SamplingParams(max_tokens=1, temperature=0.8, top_p=0.9),
}


def main(given: Sequence[str] | None = None) -> int:
    parser = arguments("Compare the time of audits with the time of plain decoding.")
    add_engine(parser)
    parser.add_argument("--count", type=int, default=8, help="number of prompts (default: %(default)s)")
    parser.add_argument(
        "--max-tokens", type=int, default=128, help="maximum tokens of each answer (default: %(default)s)"
    )
    max_seq_len = "maximum tokens of a prompt with its answer (default: %(default)s)"
    parser.add_argument("--max-seq-len", type=int, default=1024, help=max_seq_len)
    args = parser.parse_args(given)
    folder = args.model or prepare()
    config = EngineConfig(
        max_batch_size=1,
        max_seq_len=args.max_seq_len,
        weights=args.weights,
        dtype=args.dtype,
        device=args.device,
    )
    engine = load_engine(folder, config=config)
    prompts = read_prompts(args.prompts, Tokenizer.load(folder), max_seq_len=engine.max_seq_len, limit=args.count)
    _timed(engine, Request("warm-up", prompts[0].token_ids, replace(SAMPLINGS["greedy"], max_tokens=8)))
    results = [
        _compared(engine, prompts, name, replace(sampling, max_tokens=args.max_tokens))
        for name, sampling in SAMPLINGS.items()
    ]
    return 0 if all(result["equal"] == result["answers"] for result in results) else 1


def _compared(engine: Engine, prompts: Sequence[Prompt], name: str, sampling: SamplingParams) -> dict[str, Any]:
    """Measures plain decoding and audits with one sampling method. Effects: prints the result as a line of JSON."""
    plain_seconds, audit_seconds, num_tokens, num_equal = 0.0, 0.0, 0, 0
    for number, prompt in enumerate(prompts):
        request = Request("plain", prompt.token_ids, replace(sampling, seed=number))
        answer, seconds = _timed(engine, request)
        plain_seconds += seconds
        scored, seconds = _timed(engine, replace(request, expected_token_ids=answer.token_ids))
        audit_seconds += seconds
        num_tokens += len(answer.token_ids)
        num_equal += (scored.token_ids, scored.finish_reason) == (answer.token_ids, answer.finish_reason)
    result = {
        "sampling": name,
        "answers": len(prompts),
        "prompt_tokens": sum(len(prompt.token_ids) for prompt in prompts),
        "tokens": num_tokens,
        "equal": num_equal,
        "ms_per_token_plain": round(1000 * plain_seconds / num_tokens, 3),
        "ms_per_token_audit": round(1000 * audit_seconds / num_tokens, 3),
        "ratio": round(plain_seconds / audit_seconds, 2),
        "load_average": round(os.getloadavg()[0], 1),
    }
    print(json.dumps(result), flush=True)
    return result


def _timed(engine: Engine, request: Request) -> tuple[Completion, float]:
    engine.scheduler.pool.forget_prefixes()
    started = time.perf_counter()
    (completion,) = generate(engine, [request])
    return completion, time.perf_counter() - started


if __name__ == "__main__":
    sys.exit(main())
