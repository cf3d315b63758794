"""Trains a speculator for some minutes or steps on a given number of answers, and measures its acceptance length.

    python -m benchmarks.train --kind eagle3 --rows 300 --minutes 5 --prompts FILE.jsonl

The model answers `--rows` training questions and the held-out questions, at temperature 0. `python -m workers.training`
trains the speculator on the answers to the training questions. The command prints one line of JSON:

    rows, tokens                   number of training answers and of their tokens
    minutes                        processor time of the training loop; unlike wall time, it does not depend on other
                                   work on the machine
    simulated_acceptance_length    computed by the training program from the held-out answers
    served_acceptance_length       measured while the engine answers the held-out questions; should equal the simulated
                                   acceptance length

The held-out questions are the same for any number of rows. The model's answers are kept in --folder and used for all
kinds and numbers of rows. docs/metrics.md defines the acceptance length.
"""

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.decode import acceptance
from benchmarks.workload import WorkloadError, arguments
from engine.config import EngineConfig
from engine.errors import EngineError
from engine.generate import generate
from engine.load import load_engine
from engine.request import Request, SamplingParams
from examples.prepare_model import ModelNotFoundError, prepare
from examples.prompts import chat_row, messages, prompt_sets
from workers.training.__main__ import answer_prompts
from workers.training.data import split_key

_ROOT = Path(__file__).resolve().parents[1]
_LOG_LINES = 5
_NUM_GENERATED = 2048  # word problems from which the held-out and the training questions are taken


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Raises: WorkloadError, EngineError, ModelNotFoundError: prompts or model cannot be used, or training failed."""
    model: Path = args.model or prepare()
    held_out, training = questions(args.prompts, args.rows, args.held_out)
    answers: Path = args.folder / args.kind / "answers.jsonl"
    shutil.rmtree(answers.parent, ignore_errors=True)
    answers.parent.mkdir(parents=True)
    write_answers(model, [*held_out, *training], answers, kept=args.folder, max_tokens=args.max_tokens)
    hyperparameters = {
        **({"max_steps": args.steps} if args.steps else {"max_seconds": 60 * args.minutes}),
        "epochs": 10_000,  # --minutes or --steps ends the training
        "patience": 0,
        # Training rounds the number of validation answers up; - 0.5 makes the result exactly `held_out`.
        "validation_fraction": (args.held_out - 0.5) / (args.rows + args.held_out),
        "draft_budget": args.draft_budget,
        **args.hyperparameters,
    }
    speculator = train_speculator(args.kind, model, answers, hyperparameters)
    report = json.loads((speculator / "report.json").read_text())
    requests = _held_out(answers, set(report["validation_ids"]))
    served, rates = _serve(args.kind, model, speculator, requests, draft_budget=args.draft_budget)
    return {
        "kind": args.kind,
        "rows": report["conversations_train"],
        "tokens": report["answer_tokens"],
        "minutes": round(report["elapsed_seconds"] / 60, 2),
        "steps": report["steps"],
        "simulated_acceptance_length": round(report["acceptance_length"], 3),
        "served_acceptance_length": round(served, 3),
        "acceptance_rate_per_position": [round(rate, 4) for rate in rates],
        "held_out": len(requests),
        "draft_budget": args.draft_budget,
        "hyperparameters": args.hyperparameters,
        "speculator": str(speculator),
    }


def questions(path: Path | None, rows: int, held_out: int) -> tuple[list[str], list[str]]:
    """Returns the questions that the training program will hold out, and the first `rows` of the other questions.

    path: file of questions; None generates them.
    Raises: WorkloadError: there are too few questions, or a line is not {"question": ...}.
    """
    if path is None:
        questions = prompt_sets(_NUM_GENERATED, 0).distill
    else:
        try:
            with path.open(encoding="utf-8") as lines:
                questions = list(dict.fromkeys(str(json.loads(line)["question"]) for line in lines))
        except (ValueError, KeyError, TypeError) as error:
            raise WorkloadError(f'every line of {path} must be {{"question": ...}}, got {error!r}') from error
    if len(questions) < rows + held_out:
        raise WorkloadError(f"{path or 'the generator'} must have {rows + held_out} questions, has {len(questions)}")
    # This is the order in which the training program selects the answers to hold out.
    first = sorted(questions, key=lambda question: split_key(_row_id(question)))[:held_out]
    return first, [question for question in questions if question not in set(first)][:rows]


def _row_id(question: str) -> str:
    return hashlib.sha256(question.encode()).hexdigest()[:16]


def write_answers(
    model: Path,
    questions: Sequence[str],
    path: Path,
    *,
    kept: Path,
    max_tokens: int,
    messages: Callable[[str], list[dict[str, str]]] = messages,
) -> None:
    """Writes the questions with their answers to `path`, as training rows.

    messages: makes the conversation that ends with a question.

    Effects: answers that are not yet stored in the folder `kept` are generated and stored there.
    """
    stored = _StoredAnswers(kept / f"{model.name}-{max_tokens}.jsonl")
    missing = [question for question in questions if _row_id(question) not in stored.rows]
    if missing:
        prompts, tokens = kept / "missing.jsonl", kept / "missing-tokens.jsonl"
        rows = [
            chat_row(_row_id(question), messages(question), model=model.name, max_tokens=max_tokens)
            for question in missing
        ]
        prompts.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        answer_prompts(model, prompts, tokens, lambda event: None)
        stored.add(tokens)
    lines = [stored.rows[row_id] for question in questions if (row_id := _row_id(question)) in stored.rows]
    path.write_text("".join(lines), encoding="utf-8")


class _StoredAnswers:
    """The generated training rows, by custom_id, which are also stored in a file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.rows: dict[str, str] = {}
        if path.exists():
            self._read(path)

    def add(self, tokens: Path) -> None:
        self._read(tokens)
        partial = self._path.with_suffix(".partial")
        partial.write_text("".join(self.rows.values()), encoding="utf-8")
        partial.rename(self._path)

    def _read(self, path: Path) -> None:
        for line in path.read_text(encoding="utf-8").splitlines(keepends=True):
            self.rows[json.loads(line)["custom_id"]] = line


def train_speculator(
    kind: str, model: Path, answers: Path, hyperparameters: dict[str, Any], *, initial: Path | None = None
) -> Path:
    """Trains in the folder of the answers, from the speculator `initial` if there is one. Returns the result's folder.

    Raises: WorkloadError: training failed; the message ends with the last lines that it printed.
    """
    folder = answers.parent
    command = [sys.executable, "-m", "workers.training", str(model), os.devnull, str(folder), "--method", kind]
    command += ["--answers", str(answers), "--hyperparameters", json.dumps(hyperparameters)]
    command += ["--states", str(folder.parent / "states"), "--processor-time"]
    command += ["--initial", str(initial)] if initial else []
    done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True)
    if done.returncode:
        last = "\n".join(done.stderr.splitlines()[-_LOG_LINES:])
        raise WorkloadError(f"training ended with exit code {done.returncode}:\n{last}")
    return folder / "output" / "speculator"


def _held_out(answers: Path, ids: set[str]) -> list[Request]:
    """Returns requests for the held-out prompts, limited to the lengths of the stored answers."""
    rows = (json.loads(line) for line in answers.read_text(encoding="utf-8").splitlines())
    return [
        Request(
            row["custom_id"],
            tuple(row["prompt_token_ids"]),
            SamplingParams(max_tokens=len(row["completion_token_ids"]), temperature=0.0),
            memory="benchmark",
        )
        for row in rows
        if row["custom_id"] in ids
    ]


def _serve(
    kind: str, model: Path, speculator: Path, requests: Sequence[Request], *, draft_budget: int
) -> tuple[float, list[float]]:
    """Returns the acceptance length and the acceptance rate of each position."""
    config = EngineConfig(draft_budget=draft_budget)
    engine = load_engine(model, drafter=kind, speculator_dir=speculator, config=config)
    return acceptance(generate(engine, requests))


def main(argv: Sequence[str] | None = None) -> int:
    parser = arguments("Trains a speculator for some minutes or steps and measures its acceptance length.")
    parser.add_argument("--kind", required=True, help="kind of speculator: medusa, eagle3, mtp, ...")
    parser.add_argument("--rows", type=int, required=True, metavar="N", help="number of training answers")
    end = parser.add_mutually_exclusive_group(required=True)
    end.add_argument("--minutes", type=float, metavar="M", help="processor time of the training loop")
    steps = "number of training steps; unlike with --minutes, the result does not depend on the machine's speed"
    end.add_argument("--steps", type=int, metavar="N", help=steps)
    held_out = "number of held-out questions, with which the speculator is evaluated (default 32)"
    parser.add_argument("--held-out", type=int, default=32, metavar="N", help=held_out)
    max_tokens = "maximum number of tokens of an answer (default 160)"
    parser.add_argument("--max-tokens", type=int, default=160, metavar="N", help=max_tokens)
    draft_budget = "number of draft tokens per pass (default 15)"
    parser.add_argument("--draft-budget", type=int, default=15, metavar="N", help=draft_budget)
    hyperparameters = "hyperparameters that replace the kind's defaults, as a JSON object"
    parser.add_argument("--hyperparameters", type=json.loads, default={}, metavar="JSON", help=hyperparameters)
    folder = "folder for answers and speculators (default var/train)"
    parser.add_argument("--folder", type=Path, default=_ROOT / "var" / "train", metavar="DIR", help=folder)
    try:
        result = run(parser.parse_args(argv))
    except (WorkloadError, EngineError, ModelNotFoundError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
