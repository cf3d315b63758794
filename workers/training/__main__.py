"""Trains a speculator in one command, without the service: the model answers prompts, then training uses the answers.

    python -m workers.training MODEL PROMPTS.jsonl FOLDER --method eagle3 --hyperparameters '{"epochs": 8}'

PROMPTS.jsonl holds OpenAI batch rows (`python -m examples.prompts` writes such a file). Answers are greedy unless a
row sets other sampling parameters. The answers are written to FOLDER/tokens.jsonl and the speculator to
FOLDER/output/speculator. A second run with the same FOLDER reuses the answers and continues training from the last
checkpoint. With `torchrun --nproc-per-node N -m workers.training ...` N processes share each training batch.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from workers.contracts import MAX_SHARD_ROWS, BatchSpec, Event, ShardDone, ShardRange, TrainingSpec
from workers.emitter import Emit, EventWriter
from workers.kinds import AUTO

_TOKENS = "tokens.jsonl"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m workers.training", description="Trains a speculator on prompts.")
    parser.add_argument("model", type=Path, help="the model's folder")
    parser.add_argument("prompts", type=Path, help="OpenAI batch rows")
    parser.add_argument("folder", type=Path, help="where answers, checkpoints and the speculator are written")
    parser.add_argument("--method", default="eagle3", help="medusa, eagle3, ..., or auto (default eagle3)")
    parser.add_argument(
        "--hyperparameters", type=json.loads, default={}, metavar="JSON", help="hyperparameters of the method"
    )
    parser.add_argument("--answers", type=Path, help="file with the model's answers (default FOLDER/tokens.jsonl)")
    parser.add_argument("--states", type=Path, metavar="DIR", help="keep hidden states in DIR, for reuse by later runs")
    parser.add_argument(
        "--processor-time",
        action="store_true",
        help="count processor time instead of wall time towards the hyperparameter max_seconds",
    )
    parser.add_argument(
        "--initial", type=Path, metavar="DIR", help="a speculator of this method, from which training continues"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="(default 0)")
    parser.add_argument(
        "--revision", default="local", help="the model's revision as recorded in the artifact (default local)"
    )
    args = parser.parse_args(arguments)
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # for the reason given in workers.run
    from workers.training.auto import run_auto_training  # imported here: torch must see the environment set above
    from workers.training.job import run_training
    from workers.training.kept_states import KeptStates
    from workers.training.processes import joined_processes

    emit = EventWriter(sys.stdout)
    with joined_processes() as processes:
        args.folder.mkdir(parents=True, exist_ok=True)
        tokens = args.answers or args.folder / _TOKENS
        if processes.is_first and not tokens.exists():
            answer_prompts(args.model, args.prompts, tokens, emit)
        processes.wait_for_all()
        kept = KeptStates(args.states) if args.states else None
        clock = time.process_time if args.processor_time else time.monotonic
        spec = _spec(args, tokens)
        if args.method == AUTO:
            if processes.count > 1:
                parser.error("--method auto trains in one process; run it without torchrun")
            finished = run_auto_training(spec, emit, kept=kept, clock=clock)
        else:
            finished = run_training(spec, emit, processes, kept=kept, clock=clock)
        if processes.is_first:
            emit(finished)
    return 0


def _spec(args: argparse.Namespace, tokens: Path) -> TrainingSpec:
    return TrainingSpec(
        job_id=args.folder.resolve().name,  # trackers show the job id as the name of the run
        model_dir=str(args.model),
        target_revision=args.revision,
        method=args.method,
        tokens_paths=(str(tokens),),
        output_dir=str(args.folder / "output"),
        checkpoint_dir=str(args.folder / "checkpoint"),
        hyperparameters=args.hyperparameters,
        seed=args.seed,
        initial_speculator_dir=str(args.initial) if args.initial else None,
    )


def answer_prompts(model: Path, prompts: Path, tokens: Path, emit: Emit) -> None:
    """Answers the prompts with a batch job and writes the token ids of prompts and answers to the file `tokens`.

    Rows that failed are not in the file; the emitted events count them.

    Effects: the file is written completely or not at all.
    """
    from workers.inference.batch import run_batch

    with prompts.open(encoding="utf-8") as rows:
        count = sum(1 for row in rows if row.strip())
    ranges = [(start, min(start + MAX_SHARD_ROWS, count)) for start in range(0, count, MAX_SHARD_ROWS)]
    shards: list[ShardDone] = []
    folder = tokens.with_name(f"{tokens.stem}.shards")

    def collect(event: Event) -> None:
        if isinstance(event, ShardDone):
            shards.append(event)
        emit(event)

    spec = BatchSpec(
        job_id="local",
        model_dir=str(model),
        model_name=model.name,
        input_path=str(prompts),
        output_dir=str(folder),
        shards=tuple(ShardRange(shard_no=no, row_from=a, row_to=b) for no, (a, b) in enumerate(ranges)),
    )
    folder.mkdir(exist_ok=True)
    run_batch(spec, collect)
    partial = tokens.with_suffix(".partial")
    with partial.open("w", encoding="utf-8") as out:
        for shard in sorted(shards, key=lambda shard: shard.shard_no):
            lines = Path(shard.path).read_text(encoding="utf-8").splitlines(keepends=True)
            out.writelines(line for line in lines if json.loads(line)["ok"])
    partial.rename(tokens)


if __name__ == "__main__":
    sys.exit(main())
