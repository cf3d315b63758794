"""Measures the speedup by speculators that were trained on answers to prompts of the measured workload.

    python -m benchmarks.workloads [--workloads extraction,chat] [--base DIR] [--kind medusa] [--rows 300 --steps 540]

For each workload (generators.py), the model answers `--rows` prompts, and a speculator is trained on the answers
("custom"). Then these arms take turns to answer other prompts:

    none             without drafts
    suffix           suffix decoding, which needs no training
    base (+suffix)   the speculator in the folder --base, which was trained on other prompts
    custom (+suffix) the trained speculator
    custom once      one draft token per pass. For the kind `mtp`, the module then runs once per pass instead of
                     recursively

The command prints a table and writes it with all samples to --folder. The exit code is 1 if an answer differs from
the answer without drafts.
"""

import argparse
import json
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from itertools import cycle
from pathlib import Path

from benchmarks.arms import OURS, PLAIN, Arm, our_arm
from benchmarks.cpu import Plan, measure, start
from benchmarks.peers.install import PeerMissing
from benchmarks.report import Machine
from benchmarks.samples import Samples
from benchmarks.train import train_speculator, write_answers
from benchmarks.workload import WorkloadError, speculator_kind
from benchmarks.workloads.generators import WORKLOADS, prompts
from engine.tokenizer import Tokenizer
from examples.prepare_model import ModelNotFoundError, prepare

_SEED = 20261127
_NONE, _SUFFIX = "none", "suffix"
_HEADINGS = ("workload", "arm", "tok/s (quartiles)", "× none", "× suffix", "acceptance length", "equal to none")


def run(args: argparse.Namespace) -> bool:
    """Measures all workloads, and writes and prints the table. Returns whether all answers were equal.

    Raises: WorkloadError, ModelNotFoundError, PeerMissing: a workload cannot be trained or measured.
    """
    model = args.model or prepare()
    args.folder.mkdir(parents=True, exist_ok=True)
    machine, measured = Machine.now(), {}
    for workload in args.workloads:
        print(f"workload {workload}", file=sys.stderr, flush=True)
        measured[workload] = _measure(workload, model, args)
        text = table(measured, machine, args)
        (args.folder / "table.md").write_text(text + "\n", encoding="utf-8")
        samples = {name: [asdict(sample) for sample in of.all] for name, of in measured.items()}
        (args.folder / "results.json").write_text(
            json.dumps({"machine": asdict(machine), "samples": samples}, indent=2)
        )
    print(text)
    return all(sample.equal in (None, sample.prompts) for samples in measured.values() for sample in samples.all)


def _measure(workload: str, model: Path, args: argparse.Namespace) -> Samples:
    plan = Plan(
        batch_sizes=(args.batch_size,), max_tokens=args.max_tokens, min_rounds=args.rounds, max_rounds=args.rounds
    )
    new, known = _prompts(workload, args.rows, plan.max_num_prompts)
    folder = args.folder / workload
    shutil.rmtree(folder, ignore_errors=True)  # of an earlier run, whose training would continue
    folder.mkdir()
    answers = folder / "answers.jsonl"
    write_answers(model, known, answers, kept=args.folder, max_tokens=args.max_tokens, messages=_messages)
    hyperparameters = {"max_steps": args.steps, "epochs": 10_000, "patience": 0}
    custom = train_speculator(args.kind, model, answers, hyperparameters, initial=args.base if args.adapt else None)
    tokenizer = Tokenizer.load(model)
    token_ids = cycle([list(tokenizer.encode_chat(_messages(prompt))) for prompt in new])
    missing: dict[str, str] = {}
    with ExitStack() as stack:
        running = start(_arms(model, custom, args.base), plan, folder, stack, missing)
        samples = measure(plan, running, [], token_ids)
    if missing := missing | running.missing:
        raise PeerMissing("; ".join(f"{arm}: {reason}" for arm, reason in missing.items()))
    return samples


def _prompts(workload: str, num_known: int, num_new: int) -> tuple[list[str], list[str]]:
    """Returns `num_new` prompts to measure with and `num_known` prompts to train on.

    The prompts to measure with do not depend on `num_known`.
    """
    try:
        found = prompts(workload, num_new + num_known, seed=_SEED)
    except ValueError as error:
        raise WorkloadError(str(error)) from error
    return found[:num_new], found[num_new:]


def _messages(prompt: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": prompt}]


def _arms(model: Path, custom: Path, base: Path | None) -> list[Arm]:
    """Raises: WorkloadError: a folder does not contain a speculator."""
    arms = [our_arm(model, PLAIN, "none"), our_arm(model, _SUFFIX, "suffix")]
    for name, folder in (("base", base), ("custom", custom)):
        if folder is not None:
            kind = speculator_kind(folder)
            arms += [our_arm(model, name, kind, folder), our_arm(model, f"{name} + suffix", f"{kind}+suffix", folder)]
    return [*arms, our_arm(model, "custom once", speculator_kind(custom), custom, draft_budget=1)]


def table(measured: dict[str, Samples], machine: Machine, args: argparse.Namespace) -> str:
    """Returns the table in Markdown. Speeds are medians over the rounds, and ratios compare arms of the same round."""
    about = (
        f"{args.kind} of {args.rows} answers and {args.steps} steps, {args.batch_size} prompts at a time, greedy, at"
        f" most {args.max_tokens} tokens per answer, {args.rounds} rounds. {machine.processor},"
        f" {machine.num_cores} cores, {machine.started_at}."
    )
    lines = [about, "", f"| {' | '.join(_HEADINGS)} |", f"|{'---|' * len(_HEADINGS)}"]
    for workload, samples in measured.items():
        lines += [f"| {workload} | {' | '.join(cells)} |" for cells in _rows(samples, args.batch_size)]
    return "\n".join(lines)


def _rows(samples: Samples, batch_size: int) -> Iterator[tuple[str, ...]]:
    none = next(sample.own_plain for sample in samples.all)
    suffix = f"{OURS} {_SUFFIX}"
    for arm in dict.fromkeys(sample.arm for sample in samples.all):
        own, speed = samples.of(arm, batch_size), samples.speed(arm, batch_size)
        assert speed is not None  # the arm has samples
        ratios = [samples.ratio(arm, other, batch_size) for other in (none, suffix)]
        passes = sum(sample.tokens / (sample.acceptance_length or 1.0) for sample in own)
        yield (
            _NONE if arm == none else arm.removeprefix(f"{OURS} "),
            f"{speed.median:.1f} ({speed.low:.1f}-{speed.high:.1f})",
            *(f"{ratio.median:.2f}" if ratio else "" for ratio in ratios),
            f"{sum(sample.tokens for sample in own) / passes:.2f}",
            f"{sum(sample.equal or 0 for sample in own)} of {sum(sample.prompts for sample in own)}",
        )


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.workloads", description="Measures several workloads.")
    parser.add_argument("--model", type=Path, metavar="DIR", help="folder of the model (default: the demo's model)")
    names = f"workloads to measure (default: {','.join(WORKLOADS)})"
    parser.add_argument("--workloads", type=_workloads, default=tuple(WORKLOADS), metavar="A,B", help=names)
    parser.add_argument("--base", type=Path, metavar="DIR", help="folder of a speculator trained on other prompts")
    parser.add_argument("--adapt", action="store_true", help="train custom speculators from the one in --base")
    parser.add_argument("--kind", default="medusa", help="kind of speculator that is trained (default: %(default)s)")
    parser.add_argument("--rows", type=int, default=300, metavar="N", help="answers to train on (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=540, metavar="N", help="training steps (default: %(default)s)")
    parser.add_argument(
        "--batch-size", type=int, default=1, metavar="N", help="prompts at a time (default: %(default)s)"
    )
    parser.add_argument("--max-tokens", type=int, default=160, metavar="N", help="of an answer (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="rounds of all arms (default: %(default)s)")
    folder = "folder for answers, speculators and results (default: build/workloads)"
    parser.add_argument("--folder", type=Path, default=Path("build/workloads"), metavar="DIR", help=folder)
    args = parser.parse_args(argv)
    if args.adapt and args.base is None:
        parser.error("--adapt needs --base")
    try:
        return 0 if run(args) else 1
    except (WorkloadError, ModelNotFoundError, PeerMissing, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def _workloads(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    if unknown := set(names) - set(WORKLOADS):
        raise argparse.ArgumentTypeError(f"must be some of {', '.join(WORKLOADS)}, got {', '.join(sorted(unknown))}")
    return names


if __name__ == "__main__":
    sys.exit(main())
