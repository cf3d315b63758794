"""What does a kind of speculator make of so many answers in so many minutes?

    python -m benchmarks.train --kind eagle3 --rows 300 --minutes 5 --prompts FILE.jsonl

The model answers `--rows` prompts and some more, the speculator is trained on the answers to the former, as
`python -m workers.training` does, and the latter judge it. Prints one line of JSON:

    rows, tokens, minutes                answers to learn from, tokens in them, and how long the training loop ran
    simulated_acceptance_length          as training found it on the held-out answers
    served_acceptance_length             the engine's own, over the same prompts; equal, or something is amiss

Answers are kept in --folder and given once for all kinds. Acceptance length: docs/metrics.md. T = 0.
"""

import argparse
import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
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
from examples.prompts import prompt_sets, write_rows

_ROOT = Path(__file__).resolve().parents[1]
_LOG_LINES = 5


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Raises: WorkloadError, EngineError, ModelNotFoundError: prompts or model cannot be used, or training failed."""
    model: Path = args.model or prepare()
    count = args.rows + args.held_out
    answers: Path = args.folder / f"answers-{count}.jsonl"
    prompts: Path = args.folder / f"prompts-{count}.jsonl"
    args.folder.mkdir(parents=True, exist_ok=True)
    questions = _questions(args.prompts, count)
    write_rows(prompts, questions, prefix="problem", model=model.name, max_tokens=args.max_tokens)
    hyperparameters = {
        "max_seconds": 60 * args.minutes,
        "epochs": 10_000,  # the minutes end it
        "validation_fraction": args.held_out / count,
        "draft_budget": args.draft_budget,
        **args.hyperparameters,
    }
    speculator = _train(args.kind, model, prompts, answers, args.folder / args.kind, hyperparameters)
    report = json.loads((speculator / "report.json").read_text())
    work = _held_out(answers, set(report["validation_ids"]))
    served, rates = _serve(args.kind, model, speculator, work, draft_budget=args.draft_budget)
    return {
        "kind": args.kind,
        "rows": report["conversations_train"],
        "tokens": report["answer_tokens"],
        "minutes": round(report["elapsed_seconds"] / 60, 2),
        "steps": report["steps"],
        "simulated_acceptance_length": round(report["acceptance_length"], 3),
        "served_acceptance_length": round(served, 3),
        "acceptance_rate_per_position": [round(rate, 4) for rate in rates],
        "held_out": len(work),
        "draft_budget": args.draft_budget,
        "hyperparameters": args.hyperparameters,
        "speculator": str(speculator),
    }


def _questions(path: Path | None, count: int) -> list[str]:
    """Raises: WorkloadError: too few, or lines of another form."""
    if path is None:
        return prompt_sets(count, 0).distill
    try:
        with path.open(encoding="utf-8") as lines:
            found = [str(json.loads(line)["question"]) for line, _ in zip(lines, range(count), strict=False)]
    except (ValueError, KeyError, TypeError) as error:
        raise WorkloadError(f'{path} must hold lines {{"question": ...}}, got {error!r}') from error
    if len(found) < count:
        raise WorkloadError(f"{path} must have {count} questions, has {len(found)}")
    return found


def _train(kind: str, model: Path, prompts: Path, answers: Path, folder: Path, hyperparameters: dict[str, Any]) -> Path:
    """The speculator's folder, emptied first. Raises: WorkloadError: training failed; the message is its own."""
    shutil.rmtree(folder, ignore_errors=True)
    command = [sys.executable, "-m", "workers.training", str(model), str(prompts), str(folder), "--method", kind]
    command += ["--answers", str(answers), "--hyperparameters", json.dumps(hyperparameters)]
    done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True)
    if done.returncode:
        last = "\n".join(done.stderr.splitlines()[-_LOG_LINES:])
        raise WorkloadError(f"training ended with exit code {done.returncode}:\n{last}")
    return folder / "output" / "speculator"


def _held_out(answers: Path, ids: set[str]) -> list[Request]:
    """Each is to be answered again, at the length it was."""
    rows = (json.loads(line) for line in answers.read_text(encoding="utf-8").splitlines())
    return [
        Request(
            row["custom_id"],
            tuple(row["prompt_token_ids"]),
            SamplingParams(max_tokens=len(row["completion_token_ids"]), temperature=0.0),
        )
        for row in rows
        if row["custom_id"] in ids
    ]


def _serve(
    kind: str, model: Path, speculator: Path, work: Sequence[Request], *, draft_budget: int
) -> tuple[float, list[float]]:
    config = EngineConfig(draft_budget=draft_budget)
    engine = load_engine(model, drafter=kind, speculator_dir=speculator, config=config)
    return acceptance(generate(engine, work))


def main(argv: Sequence[str] | None = None) -> int:
    parser = arguments("Trains a speculator for some minutes and measures what it accepts, simulated and served.")
    parser.add_argument("--kind", required=True, help="of speculator: medusa, eagle3, mtp, ...")
    parser.add_argument("--rows", type=int, required=True, metavar="N", help="answers to learn from")
    parser.add_argument("--minutes", type=float, required=True, metavar="M", help="of training, answering not included")
    parser.add_argument("--held-out", type=int, default=32, metavar="N", help="answers to judge by (default 32)")
    parser.add_argument("--max-tokens", type=int, default=160, metavar="N", help="longest answer (default 160)")
    parser.add_argument("--draft-budget", type=int, default=15, metavar="N", help="drafted a pass (default 15)")
    parser.add_argument("--hyperparameters", type=json.loads, default={}, metavar="JSON", help="of the kind")
    parser.add_argument(
        "--folder", type=Path, default=_ROOT / "var" / "train", help="for answers and speculators (default var/train)"
    )
    try:
        result = run(parser.parse_args(argv))
    except (WorkloadError, EngineError, ModelNotFoundError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
