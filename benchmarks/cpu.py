"""Compares the speeds of our engine and of other engines (peers), with the same model, prompts and machine.

    python -m benchmarks.cpu [--peers vllm,transformers,llama.cpp] [--speculator DIR] [--prompts FILE.jsonl]

The command writes table.md, results.json and plot.png to --out and prints the table. The exit code is 0 if no claim
fails, 1 if a claim fails, and 2 if nothing could be measured. docs/benchmarks.md explains the figures.

An arm is an engine with a drafting method and a weight format (benchmarks/arms.py). In a round, the arms take turns to
answer the same prompts at one batch size. Every round has new prompts, so that no engine can reuse an earlier answer.
Rounds are repeated until every claim (benchmarks/claims.py) is settled, which means that more rounds would hardly
change its status, or until --minutes are over.
"""

import argparse
import os
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import cycle, islice
from pathlib import Path

from benchmarks.arms import (
    ENGINES,
    OURS,
    PLAIN,
    Arm,
    Process,
    llama_cpp_arms,
    our_arms,
    transformers_arms,
    vllm_arms,
)
from benchmarks.claims import Claim, Verdict, claims, judge
from benchmarks.peers.install import PeerMissing
from benchmarks.peers.wire import Answers, Job
from benchmarks.report import Machine, Report, write_report
from benchmarks.samples import Sample, Samples
from benchmarks.workload import WorkloadError, arguments, read_prompts
from engine.errors import EngineError
from engine.tokenizer import Tokenizer
from examples.prepare_model import ModelNotFoundError, prepare

_WARM_UP_TOKENS = 16
_MAX_PROMPT_LEN = 512  # tokens; longer prompts are refused


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    batch_sizes: tuple[int, ...]
    max_tokens: int
    min_rounds: int
    max_rounds: int
    deadline: float = float("inf")  # on the clock of time.monotonic()

    @property
    def settings(self) -> dict[str, int]:
        """The settings that every runner gets."""
        return {"max_batch_size": max(self.batch_sizes), "max_seq_len": _MAX_PROMPT_LEN + self.max_tokens + 32}

    def num_prompts(self, batch_size: int) -> int:
        """The number of prompts in a round: enough that the batch is full for most of the time."""
        return max(8, 2 * batch_size)

    @property
    def max_num_prompts(self) -> int:
        return sum(self.max_rounds * self.num_prompts(size) + size for size in self.batch_sizes)


@dataclass(slots=True, kw_only=True)
class RunningArms:
    """The processes of the arms. An arm that fails is moved from `processes` to `missing`."""

    processes: dict[Arm, Process]
    missing: dict[str, str] = field(default_factory=dict)  # name of an arm -> why it does not run

    def answer(self, arm: Arm, job: Job) -> Answers | None:
        try:
            return self.processes[arm].answer(job)
        except PeerMissing as error:
            self.missing[arm.name] = str(error)
            del self.processes[arm]
            return None


def measure(plan: Plan, arms: RunningArms, all_claims: Sequence[Claim], prompts: Iterator[list[int]]) -> Samples:
    """Measures all arms. Each batch size gets an equal share of the time that the earlier batch sizes left."""
    samples = Samples()
    for num_done, batch_size in enumerate(plan.batch_sizes):
        claims_of_size = [claim for claim in all_claims if claim.batch_size == batch_size]
        deadline = time.monotonic() + (plan.deadline - time.monotonic()) / (len(plan.batch_sizes) - num_done)
        _warm_up(batch_size, arms, prompts)
        for number in range(plan.max_rounds):
            arms_wanted = _undecided_arms(claims_of_size, samples) if number >= plan.min_rounds else None
            if arms_wanted == set() or (number > 0 and time.monotonic() > deadline):
                break
            job = Job(list(islice(prompts, plan.num_prompts(batch_size))), plan.max_tokens, batch_size)
            _round(number, job, arms, arms_wanted, samples)
    return samples


def _undecided_arms(claims_of_size: Sequence[Claim], samples: Samples) -> set[str]:
    """Returns the names of the arms in claims that are not settled."""
    unsettled = [claim for claim in claims_of_size if not judge(claim, samples).is_settled]
    return {name for claim in unsettled for name in (*claim.arms, *claim.over)}


def _warm_up(batch_size: int, arms: RunningArms, prompts: Iterator[list[int]]) -> None:
    """Runs each arm once, because its first passes are slower: they allocate, compile and adapt the draft budget."""
    job = Job(list(islice(prompts, batch_size)), _WARM_UP_TOKENS, batch_size)
    for arm in [arm for arm in arms.processes if batch_size <= arm.largest_batch]:
        arms.answer(arm, job)


def _round(number: int, job: Job, arms: RunningArms, wanted: set[str] | None, samples: Samples) -> None:
    """Runs the wanted arms, or all arms if `wanted` is None.

    Every second round reverses their order, so that a slow drift of the machine's speed affects all arms equally.
    """
    turns = [
        arm for arm in arms.processes if job.concurrency <= arm.largest_batch and (wanted is None or arm.name in wanted)
    ]
    answered: dict[Arm, tuple[Answers, float]] = {}
    for arm in turns if number % 2 == 0 else turns[::-1]:
        load = os.getloadavg()[0]
        answers = arms.answer(arm, job)
        if answers is not None:
            answered[arm] = answers, load
            speed = f"{answers.tokens_per_second:8.1f} tok/s"
            print(f"batch {job.concurrency:2}, round {number}: {arm.name:32} {speed}", file=sys.stderr, flush=True)
    plain = {arm.name: answers.outputs for arm, (answers, _) in answered.items() if arm.drafter == PLAIN}
    for arm, (answers, load) in answered.items():
        samples.add(_sample(arm, number, job, answers, plain.get(arm.plain_name), load))


def _sample(
    arm: Arm, number: int, job: Job, answers: Answers, plain: list[list[int]] | None, load_average: float
) -> Sample:
    equal = None if plain is None else sum(map(list.__eq__, answers.outputs, plain))
    return Sample(
        arm=arm.name,
        own_plain=arm.plain_name,
        weights=arm.weights,
        batch_size=job.concurrency,
        round=number,
        tokens_per_second=answers.tokens_per_second,
        tokens=answers.num_tokens,
        seconds=answers.seconds,
        ttft_seconds=statistics.median(answers.ttft_seconds),
        prefill_seconds=answers.prefill_seconds,
        acceptance_length=answers.acceptance_length,
        prompts=len(job.prompts),
        equal=equal,
        load_average=load_average,
    )


def requested_arms(args: argparse.Namespace, model: Path, missing: dict[str, str]) -> list[Arm]:
    """Returns the arms of our engine and of the requested peers.

    Raises: WorkloadError: a folder does not contain a speculator.
    """
    arms = our_arms(model, args.speculator)
    if "vllm" in args.peers:
        arms += vllm_arms(model)
    if "transformers" in args.peers:
        arms += transformers_arms(model)
    if "llama.cpp" in args.peers:
        try:
            arms += llama_cpp_arms()
        except PeerMissing as error:
            missing["llama.cpp"] = str(error)
    return [arm for arm in arms if min(args.batch_sizes) <= arm.largest_batch]


def start(arms: Sequence[Arm], plan: Plan, log_folder: Path, stack: ExitStack, missing: dict[str, str]) -> RunningArms:
    processes = {}
    for arm in arms:
        log_path = log_folder / f"{arm.name.replace(' ', '-')}.log"
        print(f"starting {arm.name}", file=sys.stderr)
        try:
            processes[arm] = Process(arm, plan.settings, log_path)
            stack.callback(processes[arm].close)
        except PeerMissing as error:
            missing[arm.name] = str(error)
            print(f"missing: {arm.name}: {error}", file=sys.stderr)
    return RunningArms(processes=processes, missing=missing)


def run(args: argparse.Namespace) -> list[Verdict]:
    """Raises: WorkloadError, EngineError, ModelNotFoundError, PeerMissing: our engine or the prompts cannot be used."""
    model = args.model or prepare()
    plan = Plan(
        batch_sizes=args.batch_sizes,
        max_tokens=args.max_tokens,
        min_rounds=args.min_rounds,
        max_rounds=args.max_rounds,
    )
    tokenizer = Tokenizer.load(model)
    available = read_prompts(args.prompts, tokenizer, max_seq_len=_MAX_PROMPT_LEN, limit=plan.max_num_prompts)
    args.out.mkdir(parents=True, exist_ok=True)
    missing: dict[str, str] = {}
    machine = Machine.now()
    with ExitStack() as stack:
        arms = start(requested_arms(args, model, missing), plan, args.out, stack, missing)
        if not any(arm.engine == OURS for arm in arms.processes):
            raise PeerMissing("our own engine did not start: " + "; ".join(missing.values()))
        ours = [arm.name for arm in arms.processes if arm.engine == OURS]
        versions = {process.about["engine"]: process.about["version"] for process in arms.processes.values()}
        all_claims = claims(ours, plan.batch_sizes)
        # The deadline is set only now, because --minutes does not include installing and starting the peers.
        plan = replace(plan, deadline=time.monotonic() + 60 * args.minutes)
        samples = measure(plan, arms, all_claims, cycle([list(prompt.token_ids) for prompt in available]))
    verdicts = [judge(claim, samples) for claim in all_claims]
    report = Report(
        machine=machine,
        versions=versions,
        model=model.name,
        prompts=args.prompts.name if args.prompts else "generated word problems",
        num_prompts=len(available),
        max_tokens=args.max_tokens,
        missing=missing,
        samples=samples,
        verdicts=verdicts,
    )
    print(write_report(report, args.out))
    return verdicts


def main(argv: Sequence[str] | None = None) -> int:
    parser = arguments("Compares the speeds of our engine and of other engines.")
    speculator = "folder of a trained speculator to measure too (may be repeated)"
    parser.add_argument("--speculator", type=Path, action="append", default=[], metavar="DIR", help=speculator)
    peers = f"other engines to measure: some of {','.join(ENGINES[1:])} (default: all), or none"
    parser.add_argument("--peers", type=_peers, default=ENGINES[1:], metavar="A,B", help=peers)
    sizes = "numbers of prompts answered at the same time (default 1,4,8,16,32)"
    parser.add_argument("--batch-sizes", type=_sizes, default=(1, 4, 8, 16, 32), metavar="1,4,8", help=sizes)
    max_tokens = "maximum number of tokens of an answer (default 128)"
    parser.add_argument("--max-tokens", type=int, default=128, metavar="N", help=max_tokens)
    rounds = "%s number of rounds for each batch size (default %d)"
    parser.add_argument("--min-rounds", type=int, default=3, metavar="N", help=rounds % ("minimum", 3))
    parser.add_argument("--max-rounds", type=int, default=9, metavar="N", help=rounds % ("maximum", 9))
    minutes = "time for all rounds; no round starts later (default 60)"
    parser.add_argument("--minutes", type=float, default=60.0, metavar="M", help=minutes)
    out = "folder for the results and logs (default build/bench-cpu)"
    parser.add_argument("--out", type=Path, default=Path("build/bench-cpu"), metavar="DIR", help=out)
    try:
        verdicts = run(parser.parse_args(argv))
    except (WorkloadError, EngineError, ModelNotFoundError, PeerMissing, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return int(any(verdict.status == "FAIL" for verdict in verdicts))


def _sizes(text: str) -> tuple[int, ...]:
    return tuple(sorted({int(size) for size in text.split(",")}))


def _peers(text: str) -> tuple[str, ...]:
    names = () if text == "none" else tuple(text.split(","))
    if unknown := set(names) - set(ENGINES[1:]):
        allowed = ", ".join(ENGINES[1:])
        raise argparse.ArgumentTypeError(f"must be 'none' or some of {allowed}, got {', '.join(sorted(unknown))}")
    return names


if __name__ == "__main__":
    sys.exit(main())
