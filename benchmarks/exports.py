"""Compares the acceptance lengths of a speculator in our engine and of its exports in vLLM.

    python -m benchmarks.exports --speculator DIR [--speculator DIR] [--prompts FILE.jsonl]

The command exports each speculator in every format that vLLM reads. vLLM with the export and our engine with the
speculator answer the same prompts greedily, with drafts that are chains of the same length. The command prints a line
of JSON for each format:

    acceptance_length       tokens per pass in our engine, without the first pass and the first token of each answer
    peer_acceptance_length  the same in vLLM
    ratio                   peer_acceptance_length / acceptance_length
    equal_answers           number of equal answers; in bfloat16 some differ, because the two engines round differently
    error                   replaces the other values if vLLM cannot run the speculator

vLLM has its own environment, which is created on the first run (docs/benchmarks.md).
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from benchmarks.arms import ROOT, Arm, Process
from benchmarks.peers.install import VLLM, PeerMissing
from benchmarks.peers.wire import Advance, Answers, Job, closed_loop
from benchmarks.workload import WorkloadError, arguments, read_prompts, speculator_kind
from engine.config import EngineConfig
from engine.errors import EngineError
from engine.load import load_drafter, load_model
from engine.loop import Engine
from engine.request import Request, SamplingParams
from engine.tokenizer import Tokenizer
from examples.prepare_model import ModelNotFoundError, prepare
from workers.exports.serve_commands import vllm_speculation

FORMATS = {  # by kind of speculator: the export formats that vLLM reads
    "eagle3": ("speculators", "specforge"),
    "block": ("speculators",),
    "medusa": ("medusa",),
    "draft_model": ("hugging_face",),
}
_BATCH_SIZE, _MAX_SEQ_LEN = 16, 1024
# Our drafters propose trees. With these values of module constants they propose a chain of the best tokens.
_CHAIN_SETTINGS: dict[str, dict[str, Any]] = {
    "engine.drafters.eagle3": {"WIDTH": 1, "CANDIDATES": 1, "LEAST_GAIN": 0.0},
    "engine.drafters.medusa": {"CANDIDATES": 1},
    "engine.drafters.block_heads": {"CANDIDATES": 1},
    "engine.drafters.draft_model": {"_BRANCHES": 1},
}


def compare(model: Path, speculator: Path, form: str, job: Job, *, dtype: str = "bfloat16") -> dict[str, Any]:
    """Returns the values that are printed for one export format.

    Raises:
        PeerMissing: vLLM cannot be installed, or cannot run the speculator.
        EngineError: our engine cannot run the speculator.
    """
    kind = speculator_kind(speculator)
    with tempfile.TemporaryDirectory() as scratch:
        exported = Path(scratch) / form
        export(speculator, form, model, exported)
        speculation = vllm_speculation(kind, exported)
        depth = speculation["num_speculative_tokens"]
        theirs = _vllm_answers(model, speculation, job, Path(scratch) / "vllm.log", dtype=dtype)
    ours = our_answers(model, kind, speculator, job, depth=depth, dtype=dtype)
    our_length, peer_length = ours.acceptance_length or 1.0, theirs.acceptance_length or 1.0
    return {
        "speculative_tokens": depth,
        "prompts": len(job.prompts),
        "acceptance_length": round(our_length, 3),
        "peer_acceptance_length": round(peer_length, 3),
        "ratio": round(peer_length / our_length, 3),
        "equal_answers": sum(a == b for a, b in zip(ours.outputs, theirs.outputs, strict=True)),
    }


def export(speculator: Path, form: str, model: Path, out: Path) -> None:
    """Raises: WorkloadError: the speculator cannot be exported in this format."""
    command = [sys.executable, "-m", "workers.exports", "export", str(speculator), str(out), "--format", form]
    done = subprocess.run([*command, "--model", str(model)], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise WorkloadError(done.stderr.strip().removeprefix("error: "))


def _vllm_answers(model: Path, speculation: dict[str, Any], job: Job, log: Path, *, dtype: str) -> Answers:
    arm = Arm(engine="vllm", runner="run_vllm", environment=VLLM)
    settings = {
        "model": str(model),
        "speculation": speculation,
        "dtype": dtype,
        "max_batch_size": job.concurrency,
        "max_seq_len": _MAX_SEQ_LEN,
    }
    process = Process(arm, settings, log)
    try:
        return process.answer(job)
    finally:
        process.close()


def our_answers(model: Path, kind: str, speculator: Path, job: Job, *, depth: int, dtype: str) -> Answers:
    target = load_model(model, dtype=dtype)
    config = EngineConfig(max_batch_size=job.concurrency, max_seq_len=_MAX_SEQ_LEN, draft_budget=depth)
    with _only_chains():
        drafter = load_drafter(kind, target, speculator, model_dir=model)
        if kind == "draft_model":
            vars(drafter).update(max_depth=depth, _least_survival=0.0)
        engine = Engine(target, drafter, config)
        sampling = SamplingParams(max_tokens=job.max_tokens, temperature=0.0)

        def add(number: int, prompt: list[int]) -> None:
            engine.add(Request(str(number), tuple(prompt), sampling, memory="benchmark"))

        def step() -> Iterator[Advance]:
            for output in engine.step():
                yield int(output.request_id), list(output.token_ids), output.finish_reason is not None

        return closed_loop(job, add, step)


@contextmanager
def _only_chains() -> Iterator[None]:
    with ExitStack() as stack:
        for module, values in _CHAIN_SETTINGS.items():
            stack.enter_context(patch.multiple(module, **values))
        yield


def run(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Raises: WorkloadError, EngineError, ModelNotFoundError: prompts, model or a speculator cannot be used."""
    model = args.model or prepare()
    prompts = read_prompts(
        args.prompts, Tokenizer.load(model), max_seq_len=_MAX_SEQ_LEN - args.max_tokens, limit=args.limit
    )
    job = Job([list(prompt.token_ids) for prompt in prompts], args.max_tokens, _BATCH_SIZE)
    for speculator in args.speculator:
        kind = speculator_kind(speculator)
        for form in FORMATS.get(kind, ()):
            line: dict[str, Any] = {"kind": kind, "format": form, "peer": "vllm", "dtype": args.dtype}
            try:
                line |= compare(model, speculator, form, job, dtype=args.dtype)
            except PeerMissing as error:
                line["error"] = str(error)
            yield line


def main(argv: Sequence[str] | None = None) -> int:
    parser = arguments("Compares the acceptance lengths of a speculator in our engine and of its exports in vLLM.")
    speculator = "folder of a trained speculator (may be repeated)"
    parser.add_argument("--speculator", type=Path, action="append", required=True, metavar="DIR", help=speculator)
    max_tokens = "maximum number of tokens of an answer (default 128)"
    parser.add_argument("--max-tokens", type=int, default=128, metavar="N", help=max_tokens)
    parser.add_argument("--limit", type=int, default=50, metavar="N", help="maximum number of prompts (default 50)")
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float32"), help="dtype of both engines")
    args = parser.parse_args(argv)
    try:
        for line in run(args):
            print(json.dumps(line), flush=True)
    except (WorkloadError, EngineError, ModelNotFoundError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
