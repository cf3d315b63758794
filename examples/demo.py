"""The demo that `make demo` runs: the whole workflow with a real model, through the API alone.

    1 load word problems             4 write the rows to a file    7 submit a pipeline: the model answers all rows
    2 format them as chat messages   5 upload the file             8 wait while the service saves the answers
    3 make batch rows                6 choose the training         9 wait while it trains, evaluates and deploys

Then the demo sends the live endpoint a question that was not in the training data, through the `openai` package, and
stops all processes. The last line of output is JSON. The exit code is 0 only if the endpoint is live and every held-out
answer is the same with and without the speculator.
"""

import argparse
import json
import shutil
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import openai
from rich.console import Console

from examples.prepare_model import MODEL_NAME, ModelNotFoundError, prepare
from examples.progress import make_view
from examples.prompts import PromptSets, messages, prompt_sets, write_rows
from examples.report import report_table, summary
from examples.stack import ROOT, Address, Stack, StackError
from slipstream import Client, Pipeline, PipelineFailed, SlipstreamError

ENDPOINT = "word-problems"

# These thresholds are lower than the measured results, so that the gate also passes on a busy machine.
GATE = {"outputs_equal": True, "min_speedup": 1.1, "min_acceptance_length": 1.5}


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    folder: Path  # for all files of the demo
    num_distill: int
    num_held_out: int
    max_tokens: int
    concurrencies: list[int]
    training: Mapping[str, Any]
    gate: Mapping[str, Any]

    @property
    def results(self) -> Path:
        return self.folder / "results"


class Demo:
    def __init__(self, options: Options, console: Console) -> None:
        self._options = options
        self._console = console

    def run(self, stack: Stack, prompts: PromptSets) -> Pipeline:
        """Runs the workflow. Returns the live pipeline. Raises: StackError, SlipstreamError, openai.OpenAIError."""
        address = stack.wait_until_ready()
        self._say(f"The stack is up at {address.base_url} (log: {_shown(stack.log_path)})")
        with Client(address.base_url, address.api_key) as client:
            files = self._write_and_upload(client, prompts)
            pipeline = self._run_pipeline(client, files)
            self._save(client, pipeline)
        self._ask(address, prompts.held_out[0])
        return pipeline

    def _write_and_upload(self, client: Client, prompts: PromptSets) -> dict[str, str]:
        """Returns the file id of each prompt set, by the set's name."""
        self._step("1-3", f"{len(prompts.distill)} word problems as batch rows, {len(prompts.held_out)} more held out")
        uploaded = {}
        self._options.results.mkdir(parents=True, exist_ok=True)
        for name, questions in (("distill", prompts.distill), ("held_out", prompts.held_out)):
            path = self._options.results / f"{name}.jsonl"
            write_rows(path, questions, prefix=name, model=MODEL_NAME, max_tokens=self._options.max_tokens)
            self._step("4", f"wrote {_shown(path)}")
            uploaded[name] = client.files.upload(path).id
            self._step("5", f"uploaded it as {uploaded[name]}")
        return uploaded

    def _run_pipeline(self, client: Client, files: Mapping[str, str]) -> Pipeline:
        training = dict(self._options.training)
        self._step("6", f"training {json.dumps(training)}, gate {json.dumps(self._options.gate)}")
        pipeline = client.pipelines.create(
            name=ENDPOINT,
            model=MODEL_NAME,
            prompts_file=files["distill"],
            held_out_file=files["held_out"],
            training=training,
            evaluation={"concurrencies": self._options.concurrencies, "max_tokens": self._options.max_tokens},
            gate={"concurrency": min(self._options.concurrencies), **self._options.gate},
        )
        self._step("7-9", f"submitted pipeline {pipeline.id}: distil, train, evaluate, gate, deploy")
        with make_view(self._console) as view:
            return client.pipelines.wait(pipeline.id, on_progress=view.show, poll_seconds=0.5)

    def _save(self, client: Client, pipeline: Pipeline) -> None:
        assert pipeline.batch_id is not None, "a live pipeline has answered its prompts"
        assert pipeline.speculator_id is not None, "a live pipeline has trained a speculator"
        assert pipeline.report is not None, "a live pipeline has an evaluation report"
        batch = client.batches.wait(pipeline.batch_id)
        assert batch.output_file_id is not None, "wait raises an error if there is no output file"
        results = self._options.results
        answers = client.files.download(batch.output_file_id, results / "answers.jsonl")
        plot = client.speculators.plot(pipeline.speculator_id, results / "report.png")
        report = results / "report.json"
        report.write_text(json.dumps(pipeline.report, indent=2) + "\n", encoding="utf-8")
        self._console.print()
        self._console.print(report_table(pipeline.report))
        self._say(f"Answers: {_shown(answers)}   Report: {_shown(report)}   Plot: {_shown(plot)}")

    def _ask(self, address: Address, question: str) -> None:
        """Sends the question to the live endpoint with OpenAI's client and prints the streamed answer."""
        self._console.print()
        self._say(f"Asking the live endpoint {ENDPOINT!r} through the openai package:")
        self._say(f"  {question}")
        figures: Mapping[str, Any] = {}
        with openai.OpenAI(base_url=address.base_url, api_key=address.api_key) as client:
            stream = client.chat.completions.create(
                model=ENDPOINT,
                messages=cast("Any", messages(question)),  # OpenAI's typed dicts are plain dicts
                max_tokens=self._options.max_tokens,
                temperature=0,
                stream=True,
                stream_options={"include_usage": True},
            )
            for chunk in stream:
                if chunk.choices and chunk.choices[0].delta.content:
                    self._console.out(chunk.choices[0].delta.content, end="", style="cyan", highlight=False)
                figures = (chunk.model_extra or {}).get("metrics") or figures
        self._console.print()
        self._say(f"  {_speculation_line(figures)}")

    def _step(self, number: str, text: str) -> None:
        self._console.print(f"{number:>5}  {text}", markup=False, highlight=False, soft_wrap=True)

    def _say(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)


def _explain(error: Exception, stack: Stack, console: Console) -> None:
    """Shows the report if the gate rejected the speculator, and otherwise the logs of the processes involved."""
    console.print(f"\nerror: {error}", markup=False, highlight=False, soft_wrap=True)
    if isinstance(error, PipelineFailed) and error.pipeline.status == "rejected" and error.pipeline.report:
        console.print(report_table(error.pipeline.report))
    else:
        console.print(stack.log_tail("jobs", "endpoints"), markup=False, highlight=False, soft_wrap=True)


def _speculation_line(metrics: Mapping[str, Any]) -> str:
    figures = metrics.get("speculative_decoding")
    if not figures:
        return "(the service reported no figures about speculation)"
    return (
        f"{figures['num_spec_steps']} passes, {figures['num_accepted_draft_tokens']} of"
        f" {figures['num_draft_tokens']} drafted tokens accepted,"
        f" acceptance length {figures['mean_acceptance_length']:.2f}"
    )


def _shown(path: Path) -> str:
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else str(path)


def read_options(argv: list[str] | None = None) -> Options:
    parser = argparse.ArgumentParser(description="Runs Slipstream's whole workflow with a small real model.")
    parser.add_argument("--folder", type=Path, default=ROOT / "var" / "demo", help="emptied first (default var/demo)")
    parser.add_argument("--distill", type=int, default=192, metavar="N", help="training prompts (default 192)")
    parser.add_argument("--held-out", type=int, default=32, metavar="N", help="prompts for the evaluation (default 32)")
    parser.add_argument("--max-tokens", type=int, default=160, metavar="N", help="longest answer (default 160)")
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 4], metavar="C", help="default: 1 4")
    parser.add_argument("--kind", default="medusa", help="kind of speculator, such as eagle3 or auto (default medusa)")
    parser.add_argument("--training", type=json.loads, default={}, metavar="JSON", help="the kind's hyperparameters")
    parser.add_argument("--gate", type=json.loads, default={}, metavar="JSON", help="conditions for the deployment")
    args = parser.parse_args(argv)
    return Options(
        folder=args.folder.resolve(),
        num_distill=args.distill,
        num_held_out=args.held_out,
        max_tokens=args.max_tokens,
        concurrencies=args.concurrency,
        training={"kind": args.kind, "max_seconds": 150, **args.training},
        gate=GATE | args.gate,
    )


def main(argv: list[str] | None = None) -> int:
    started = time.monotonic()
    options, console = read_options(argv), Console()
    shutil.rmtree(options.folder, ignore_errors=True)
    try:
        console.print("Preparing the model (about 20 s the first time)", highlight=False)
        model_dir = prepare()
        prompts = prompt_sets(options.num_distill, options.num_held_out)
    except ModelNotFoundError as error:
        console.print(f"error: {error}", markup=False)
        return 1
    stack = Stack(options.folder / "data", models={MODEL_NAME: model_dir})
    try:
        with stack:
            pipeline = Demo(options, console).run(stack, prompts)
    except StackError as error:
        console.print(f"error: {error}", markup=False, highlight=False, soft_wrap=True)
        return 1
    except (SlipstreamError, openai.OpenAIError) as error:
        _explain(error, stack, console)
        return 1
    except KeyboardInterrupt:
        console.print("\nstopped; nothing is left running")
        return 130
    assert pipeline.report is not None, "a live pipeline has an evaluation report"
    elapsed = {"pipeline": pipeline.status, "elapsed_seconds": round(time.monotonic() - started, 1)}
    print(json.dumps(summary(pipeline.report) | elapsed))
    all_equal = pipeline.report["outputs_equal"] == pipeline.report["prompts_held_out"]
    return 0 if all_equal and pipeline.status == "live" else 1


if __name__ == "__main__":
    sys.exit(main())
