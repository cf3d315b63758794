"""Reads prompts as token ids, and defines the command-line arguments that the benchmarks share.

Importing this module makes waiting OpenMP threads sleep instead of spin. It has to be imported before torch.
"""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import argparse
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.kinds import KINDS
from engine.tokenizer import ChatTemplateError, Tokenizer
from examples.prompts import messages, prompt_sets

PROBLEMS_SEED = 20260119  # differs from the demo's seed, which generates the training prompts
WITHOUT_WEIGHTS = ("ngram", "suffix")  # drafters that need no speculator


class WorkloadError(ValueError):
    """A prompts file or a speculator cannot be used; the message names the file and the reason."""


@dataclass(frozen=True, slots=True)
class Prompt:
    custom_id: str
    token_ids: tuple[int, ...]


def arguments(description: str) -> argparse.ArgumentParser:
    """Returns a parser with the arguments common to all benchmarks: the model and the prompts."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument(
        "--model", type=Path, metavar="DIR", help="folder with safetensors and tokenizer (default: the demo's model)"
    )
    parser.add_argument(
        "--prompts",
        type=Path,
        metavar="FILE",
        help='JSON lines: OpenAI batch rows or {"question": ...} (default: generated word problems)',
    )
    return parser


def add_engine(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--weights", default="auto", help="weight format: int8, or auto for the format of --dtype")
    parser.add_argument("--dtype", default="auto", help="float32, bfloat16, or auto: the model's own dtype")
    parser.add_argument("--device", default="auto", help="cpu, cuda, or auto for cuda if there is a GPU")


def read_prompts(path: Path | None, tokenizer: Tokenizer, *, max_seq_len: int, limit: int) -> list[Prompt]:
    """Returns the first `limit` prompts of a file, or `limit` generated word problems if there is no file.

    The sampling parameters of the requests in the file are ignored.
    Raises: WorkloadError: the file is empty, a line has another format, or the model cannot answer a request.
    """
    if path is None:
        questions = prompt_sets(0, limit, seed=PROBLEMS_SEED).held_out
        rows: list[dict[str, Any]] = [{"question": question} for question in questions]
        return [_prompt(row, f"problem-{number}", tokenizer, max_seq_len) for number, row in enumerate(rows)]
    lines = [(number, line) for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1) if line]
    if not lines:
        raise WorkloadError(f"{path} has no rows")
    prompts = []
    for number, line in lines[:limit]:
        try:
            prompts.append(_prompt(json.loads(line), f"line-{number}", tokenizer, max_seq_len))
        except (ValueError, KeyError, TypeError) as error:
            raise WorkloadError(f"{path}, line {number}: {error}") from error
    return prompts


def _prompt(row: dict[str, Any], name: str, tokenizer: Tokenizer, max_seq_len: int) -> Prompt:
    if "question" in row:
        return _question(row["question"], name, tokenizer, max_seq_len)
    # imported here, because it needs xgrammar
    from engine.openai.requests import InvalidRequest, parse_chat, parse_completion

    parse = parse_completion if row.get("url") == "/v1/completions" else parse_chat
    try:
        request = parse(row["body"], tokenizer=tokenizer, max_seq_len=max_seq_len)
    except InvalidRequest as error:
        raise WorkloadError(error.message) from error
    return Prompt(str(row["custom_id"]), request.prompt_token_ids)


def _question(question: str, name: str, tokenizer: Tokenizer, max_seq_len: int) -> Prompt:
    """Returns a chat prompt with the question, in the demo's format (examples/prompts.py)."""
    try:
        token_ids = tokenizer.encode_chat(messages(question))
    except ChatTemplateError as error:
        raise WorkloadError(str(error)) from error
    if len(token_ids) >= max_seq_len:
        raise WorkloadError(f"a prompt can have at most {max_seq_len - 1} tokens, got {len(token_ids)}")
    return Prompt(name, tuple(token_ids))


def speculator_kind(folder: Path) -> str:
    """Returns the kind of the speculator in a folder, from its config.json.

    Raises: WorkloadError: there is no readable config.json, or the engine does not serve this kind.
    """
    try:
        values = json.loads((folder / "config.json").read_text())
    except (OSError, ValueError) as error:
        raise WorkloadError(f"{folder} has no readable config.json: {error}") from error
    architectures = " ".join(values.get("architectures") or ())
    algorithm = values.get("speculators_model_type", "")
    if (folder / "adapter_config.json").exists():
        kind = "turbo_lora"
    elif "medusa_num_heads" in values:
        kind = "medusa"
    elif "eagle3" in algorithm or "Eagle3" in architectures:
        kind = "eagle3"
    elif algorithm in ("dflash", "dspark") or "dflash_config" in values:
        kind = "block"
    elif algorithm == "mtp":
        kind = "mtp"
    else:
        kind = "draft_model"
    if kind not in KINDS:
        raise WorkloadError(f"{folder} contains a speculator of kind {kind}, which the engine does not serve")
    return kind
