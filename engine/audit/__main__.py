"""`python -m engine.audit MODEL FILE.jsonl` re-scores answers that were given elsewhere.

Each line of the file is a body of POST /v1/audit (docs/audit.md). Prints a verdict for each line, and a summary:

    {"line": 1, "object": "audit", "verdict": "equal", "choices": [...], ...}
    {"line": 2, "error": {"message": ..., "code": "missing_token_ids", ...}}
    {"equal": 1, "different": 0, "fingerprint_mismatch": 0, "errors": 1}

The exit code is 0 only if all answers are equal.
"""

import os

# OpenMP reads this variable when torch is imported. Waiting threads that spin would take cores from working threads.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from engine.audit.claim import parse_claim
from engine.audit.scoring import audit
from engine.audit.verdict import DIFFERENT, EQUAL, FINGERPRINT_MISMATCH
from engine.config import WEIGHT_FORMATS, EngineConfig
from engine.errors import EngineError
from engine.fields import InvalidRequest
from engine.grammars.compiler import compiler_for
from engine.load import load_engine
from engine.openai.responses import error_body
from engine.tokenizer import Tokenizer

_ERRORS = "errors"


def main(arguments: list[str] | None = None) -> int:
    args = _arguments(arguments)
    config = EngineConfig(dtype=args.dtype, weights=args.weights, device=args.device, max_seq_len=args.max_seq_len)
    counts = Counter(dict.fromkeys((EQUAL, DIFFERENT, FINGERPRINT_MISMATCH, _ERRORS), 0))
    try:
        for number, verdict in enumerate(_verdicts(args, config), start=1):
            counts[verdict.get("verdict", _ERRORS)] += 1
            print(json.dumps({"line": number, **verdict}), flush=True)
    except (EngineError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    print(json.dumps(counts))
    return 0 if counts[EQUAL] == counts.total() > 0 else 1


def _arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m engine.audit", description="Re-score answers given elsewhere.")
    parser.add_argument("model", type=Path, help="folder of safetensors, config and tokenizer")
    parser.add_argument("file", type=Path, help="JSON lines: bodies of POST /v1/audit")
    parser.add_argument("--adapter", action="append", default=[], metavar="NAME=FOLDER", help="a LoRA adapter")
    parser.add_argument("--max-seq-len", type=int, help="default: the model's maximum")
    parser.add_argument("--dtype", default="auto", help="auto, float32 or bfloat16")
    parser.add_argument("--weights", default="auto", help=f"one of {', '.join(WEIGHT_FORMATS)}; auto: as published")
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda")
    return parser.parse_args(arguments)


def _verdicts(args: argparse.Namespace, config: EngineConfig) -> Iterator[dict[str, Any]]:
    engine, tokenizer = load_engine(args.model, config=config), Tokenizer.load(args.model)
    for adapter in args.adapter:
        name, _, folder = adapter.partition("=")
        engine.adapters.load(name, Path(folder))
    with closing(compiler_for(engine, tokenizer)) as grammars, args.file.open(encoding="utf-8") as lines:
        for line in lines:
            try:
                claim = parse_claim(_parsed(line), tokenizer=tokenizer, max_seq_len=engine.max_seq_len)
                yield audit(engine, claim, tokenizer=tokenizer, grammars=grammars)
            except InvalidRequest as error:
                yield error_body(error.message, param=error.param, code=error.code)


def _parsed(line: str) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"the line is not JSON: {error}", code="invalid_json") from error


if __name__ == "__main__":
    sys.exit(main())
