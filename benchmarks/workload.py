"""Rows of an OpenAI batch file as requests to the engine, and the arguments that both benchmarks share.

Importing this module sets OpenMP to passive waiting, which has to happen before torch is first imported.
"""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.config import EngineConfig
from engine.load import DRAFTERS, load_engine
from engine.loop import Engine
from engine.protocol import InvalidRequest, parse_chat, parse_completion
from engine.request import Request, SamplingParams
from engine.tokenizer import Tokenizer


class WorkloadError(ValueError):
    """The prompts file cannot be used; the message names the line."""


@dataclass(frozen=True, slots=True)
class Prompt:
    custom_id: str
    token_ids: tuple[int, ...]


def arguments(description: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument(
        "--model", type=Path, required=True, metavar="DIR", help="folder with safetensors and tokenizer"
    )
    parser.add_argument("--prompts", type=Path, required=True, metavar="FILE", help="OpenAI batch rows, JSON lines")
    parser.add_argument("--limit", type=int, metavar="N", help="take the first N rows only")
    parser.add_argument("--speculator", type=Path, metavar="DIR", help="folder of a trained speculator")
    parser.add_argument("--max-tokens", type=int, required=True, metavar="N", help="longest answer, in tokens")
    parser.add_argument("--temperature", type=float, default=0.0, metavar="T", help="0 (the default) is greedy")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="of every answer; matters above T = 0")
    parser.add_argument("--batch-size", type=int, default=16, metavar="B", help="answers in flight (default 16)")
    parser.add_argument("--dtype", default="auto", help="auto (as published), float32 or bfloat16")
    parser.add_argument("--weights", default="auto", help="auto (in dtype) or int8")
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda")
    return parser


def read_prompts(path: Path, tokenizer: Tokenizer, *, max_seq_len: int, limit: int | None = None) -> list[Prompt]:
    """The prompts of a batch file; how each row wants to be sampled is not looked at.

    Raises: WorkloadError: no rows, a line that is not a batch row, or a request this model refuses.
    """
    lines = [(number, line) for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1) if line]
    if not lines:
        raise WorkloadError(f"{path} has no rows")
    prompts = []
    for number, line in lines[:limit]:
        try:
            row = json.loads(line)
            prompts.append(Prompt(str(row["custom_id"]), _prompt_token_ids(row, tokenizer, max_seq_len)))
        except (ValueError, KeyError, TypeError) as error:
            raise WorkloadError(f"{path}, line {number}: {error}") from error
    return prompts


def _prompt_token_ids(row: dict[str, Any], tokenizer: Tokenizer, max_seq_len: int) -> tuple[int, ...]:
    parse = parse_completion if row.get("url") == "/v1/completions" else parse_chat
    try:
        return parse(row["body"], tokenizer=tokenizer, max_seq_len=max_seq_len).prompt_token_ids
    except InvalidRequest as error:
        raise WorkloadError(error.message) from error


def requests(prompts: Sequence[Prompt], args: argparse.Namespace) -> list[Request]:
    sampling = SamplingParams(max_tokens=args.max_tokens, temperature=args.temperature, seed=args.seed)
    return [Request(f"{number}", prompt.token_ids, sampling) for number, prompt in enumerate(prompts)]


def make_engine(args: argparse.Namespace, *, drafter: str, batch_size: int) -> Engine:
    config = EngineConfig(
        max_batch_size=batch_size, dtype=args.dtype, weights=args.weights, device=args.device
    )
    return load_engine(args.model, drafter=drafter, speculator_dir=args.speculator, config=config)


def add_drafter(parser: argparse.ArgumentParser, **options: Any) -> None:
    parser.add_argument("--drafter", choices=DRAFTERS, required=True, help="how tokens are proposed", **options)
