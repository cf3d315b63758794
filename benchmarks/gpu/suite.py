"""Runs all measurements of decoding on a GPU, in sections. The most important sections run first.

The results file is written after each section, so that the results of an interrupted run are not lost. It also lists
the sections that failed, and those that were left out for lack of time.
"""

import argparse
import gc
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu import peak_rates, plain, record, speculation, steps, table
from benchmarks.gpu.clock import clock_of
from benchmarks.gpu.device import NoGpuError, RunDevice
from benchmarks.gpu.shapes import SHAPES, make_model, transformers_config
from benchmarks.workload import WorkloadError, add_engine, arguments, read_prompts
from engine.errors import EngineError
from engine.load import load_model
from engine.models.dense import Decoder
from engine.tokenizer import Tokenizer

Section = tuple[str, Callable[[], Any]]
_PLAN = steps.Plan(contexts=(2048, 512, 8192, 32_768), nodes=(0, 4, 16, 64, 128))
_TINY_PLAN = steps.Plan(contexts=(40, 90), nodes=(0, 4))
_BATCH_SIZES = (1, 8, 32)
_PROMPT_LEN, _SHORT_LEN, _LONG_LEN = 512, 16, 80  # tokens; plain.py explains the two answer lengths


class Shape:
    """The sections that measure a model of one shape. In a dry run, sizes are tiny and nothing is compiled."""

    def __init__(self, name: str, run_device: RunDevice) -> None:
        self._dry_run = run_device.is_dry_run
        self._plan = _TINY_PLAN if self._dry_run else _PLAN
        self._hf_config = transformers_config(name)
        self._run_device, self._clock = run_device, clock_of(run_device.device)
        self.model = make_model(name, run_device.dtype, run_device.device, max_positions=self._plan.longest)
        self._peak_rates = peak_rates.measure(self._clock, run_device)

    def sections(self) -> list[Section]:
        batches = (1, 2) if self._dry_run else _BATCH_SIZES
        return [
            ("ceilings", lambda: asdict(self._peak_rates)),
            ("steps", self._steps),
            ("numerics", self._row_invariance_cost),
            *self._plain_sections(batches[:1]),
            ("draft", lambda: steps.draft_seconds(self.model, self._plan.contexts[0])),
            *self._plain_sections(batches[1:]),
        ]

    def _plain_sections(self, batches: Sequence[int]) -> list[Section]:
        loops = [(f"plain {batch}", partial(self._plain, batch)) for batch in batches]
        return [*loops, *((f"hugging face {batch}", partial(self._hugging_face, batch)) for batch in batches)]

    def _steps(self) -> list[dict[str, Any]]:
        engine = steps.make_engine(self.model, self._plan.longest)
        return steps.with_shares(steps.step_table(engine, self._plan), self.model, self._peak_rates)

    def _row_invariance_cost(self) -> list[dict[str, float]]:
        nodes = (0, 4) if self._dry_run else (0, 16)
        return steps.row_invariance_cost(self.model, self._plan.contexts[0], nodes)

    def _prompts_and_lengths(self, batch: int) -> tuple[Tensor, int, int]:
        """Returns prompts, and the lengths of short and long answers."""
        length, short, long = (12, 2, 5) if self._dry_run else (_PROMPT_LEN, _SHORT_LEN, _LONG_LEN)
        generator = torch.Generator().manual_seed(batch)
        prompts = torch.randint(0, self.model.config.vocab_size, (batch, length), generator=generator)
        return prompts.to(self._run_device.device), short, long

    def _plain(self, batch: int) -> dict[str, Any]:
        prompts, short, long = self._prompts_and_lengths(batch)
        engines = {
            "ours": plain.ours(self.model, prompts, long),
            "compiled loop": plain.compiled_loop(
                self.model, self._hf_config, prompts, long, compiled=not self._dry_run
            ),
        }
        return _rates(engines, batch, short, long)

    def _hugging_face(self, batch: int) -> dict[str, Any]:
        prompts, short, long = self._prompts_and_lengths(batch)
        engines = {
            "ours": plain.ours(self.model, prompts, long),
            "hugging face": plain.hugging_face(self.model, self._hf_config, prompts, compiled=not self._dry_run),
        }
        return _rates(engines, batch, short, long)


def _rates(engines: dict[str, plain.Answer], batch: int, short: int, long: int) -> dict[str, Any]:
    first = {
        name: answer(long) for name, answer in engines.items()
    }  # before timing, because this compiles and captures
    spreads = plain.rates(engines, batch, short, long)
    return {
        "batch": batch,
        "tokens_per_second": {name: asdict(spread) for name, spread in spreads.items()},
        "tokens_like_ours": {name: plain.agreement(first["ours"], answers) for name, answers in first.items()},
    }


def run_sections(sections: Sequence[Section], deadline: float, save: Callable[[dict[str, Any]], object]) -> bool:
    """Runs sections and returns whether none failed. After each section, `save` gets the results so far."""
    values: dict[str, Any] = {"failed": {}, "left_out": []}
    for name, section in sections:
        if time.monotonic() > deadline:
            values["left_out"].append(name)
        else:
            started = time.monotonic()
            try:
                values[name] = section()
            except Exception as error:  # reports this section as failed and continues with the others
                traceback.print_exc()
                values["failed"][name] = f"{type(error).__name__}: {error}"[:500]
            print(f"{name}: {time.monotonic() - started:.1f} s", file=sys.stderr, flush=True)
            gc.collect()
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
        save(values)
    return not values["failed"]


def speculation_sections(args: argparse.Namespace, model: Decoder, *, dry_run: bool) -> list[Section]:
    """Raises: WorkloadError, OSError: the prompts cannot be used."""
    longest = min(model.max_positions, 1024) - args.max_tokens
    prompts = read_prompts(args.prompts, Tokenizer.load(args.model), max_seq_len=longest, limit=args.limit)
    return [
        (
            f"batch {batch}",
            partial(
                speculation.measure_drafters,
                model,
                args.model,
                prompts,
                args.speculator,
                batch=batch,
                max_tokens=args.max_tokens,
                graph_decoding="on" if dry_run else "auto",
            ),
        )
        for batch in (1, 8)
    ]


def parser() -> argparse.ArgumentParser:
    result = arguments("Measures decoding with models of given shapes, or with --model all drafters on a real model.")
    shape = "shape of a model with random weights (may be repeated; default: all but tiny)"
    result.add_argument("--shape", action="append", choices=SHAPES, help=shape)
    speculator = "folder of a speculator that was trained for --model (may be repeated)"
    result.add_argument("--speculator", type=Path, action="append", default=[], metavar="DIR", help=speculator)
    max_tokens = "with --model: maximum number of tokens of an answer (default 128)"
    result.add_argument("--max-tokens", type=int, default=128, metavar="N", help=max_tokens)
    limit = "with --model: maximum number of prompts (default 16)"
    result.add_argument("--limit", type=int, default=16, metavar="N", help=limit)
    results = "folder for the results (default: benchmarks/results, or none with --device cpu)"
    result.add_argument("--results", type=Path, metavar="DIR", help=results)
    minutes = "time for all sections of a shape; no section starts later (default 5)"
    result.add_argument("--minutes", type=float, default=5.0, metavar="M", help=minutes)
    add_engine(result)
    result.set_defaults(device="cuda")
    return result


def main(argv: Sequence[str] | None = None) -> int:
    args = parser().parse_args(argv)
    try:
        run_device = RunDevice.of(args.device)
        names = args.shape or (["tiny"] if run_device.is_dry_run else [name for name in SHAPES if name != "tiny"])
        passed = [_run(args, run_device, name) for name in ([args.model.name] if args.model else names)]
        return int(not all(passed))
    except (NoGpuError, WorkloadError, EngineError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def _run(args: argparse.Namespace, run_device: RunDevice, name: str) -> bool:
    machine, deadline = record.Machine.now(run_device.device), time.monotonic() + 60 * args.minutes
    if args.model:
        model = load_model(args.model, dtype=args.dtype, device=str(run_device.device), weights=args.weights)
        if not isinstance(model, Decoder):
            raise WorkloadError(f"{args.model} must contain a dense model of the Llama family")
        kind, sections = "speculation", speculation_sections(args, model, dry_run=run_device.is_dry_run)
    else:
        kind, sections = "decode", Shape(name, run_device).sections()
    folder = args.results or (None if run_device.is_dry_run else record.DEFAULT_FOLDER)
    found: dict[str, Any] = {}

    def save(values: dict[str, Any]) -> None:
        found.update({"name": name} | values)
        if folder is not None:
            record.write(folder, machine, f"{kind}-{name}", found)

    passed = run_sections(sections, deadline, save)
    print(table.PRINTERS[kind](found))
    return passed
