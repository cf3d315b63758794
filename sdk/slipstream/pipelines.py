"""Pipelines: they train a speculator on a model's answers to prompts, evaluate it, and deploy it with the model."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic

from slipstream.drivers import Items, Page, Steps, listing, procedure
from slipstream.errors import PipelineFailed
from slipstream.http import D, Http, Resource, path_of
from slipstream.plans import PipelinePlan
from slipstream.types import Pipeline
from slipstream.waiting import wait_for


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineRun(Pipeline, Generic[D]):
    """The result of `create` and `resume`: a pipeline with a `wait` method."""

    http: Http = field(repr=False, compare=False)
    driver: D = field(repr=False, compare=False)

    @procedure
    def wait(
        self,
        *,
        on_progress: Callable[[Pipeline], Any] | None = None,
        poll_seconds: float = 1.0,
        timeout_seconds: float | None = None,
    ) -> Steps[Pipeline]:
        """See `Pipelines.wait`."""
        return _wait(self.http, self.id, on_progress, poll_seconds, timeout_seconds)


class Pipelines(Resource[D]):
    @procedure
    def create(
        self,
        *,
        name: str,
        model: str,
        prompts_file: str | None = None,
        distillation_id: str | None = None,
        answers: str | None = None,
        held_out_file: str | None = None,
        held_out: int | None = None,
        on_contamination: str | None = None,
        on_sensitive: str | None = None,
        distillation: Mapping[str, Any] | None = None,
        training: Mapping[str, Any] | None = None,
        evaluation: Mapping[str, Any] | None = None,
        gate: Mapping[str, Any] | None = None,
        deploy: bool = True,
        quote_id: str | None = None,
        engine: Mapping[str, Any] | None = None,
        hardware: str | None = None,
    ) -> Steps[PipelineRun[D]]:
        """Start a pipeline; `create(...).wait()` waits until it has ended.

        Args:
            name: name of the pipeline, its speculator and its deployment; requests send it as `model`.
            distillation_id: a distillation whose answers replace `prompts_file`; requires `held_out_file`.
            answers: `file` if the rows of `prompts_file` already have answers, on which the speculator is trained. By
                default, the model answers the prompts.
            held_out_file: prompts for the evaluation. Without it, `held_out` prompts are taken from `prompts_file`.
            on_contamination: what happens if training prompts resemble held-out prompts: `warn`, `drop`, `refuse`.
            on_sensitive: what happens if the files have secrets or personal data: `warn`, `redact`, `refuse`. None: the
                files are not scanned.
            distillation: {"on_truncation": "continue", "max_continued_tokens": 16384}; see `Distillations.create`.
            training: {"kind": "medusa", ...hyperparameters}.
            evaluation: {"concurrencies": [1, 4], "max_tokens": 128}.
            gate: {"min_speedup": 1.25, "concurrency": 4, "min_acceptance_length": 1.8, "outputs_equal": "model",
                "max_break_even_tokens": 50_000_000}.
                With "baseline": "suffix", the speedup is measured against suffix decoding alone.
            quote_id: a quote whose cap limits the cost of the pipeline.
            engine: options of the deployment and the evaluation; `slipstream.plans` lists them.
            hardware: `device_kind` or `name` of the device, as listed by `hardware.list`; the default is any device.
        """
        body = {
            "name": name,
            "model": model,
            "prompts_file": prompts_file,
            "distillation_id": distillation_id,
            "answers": answers,
            "held_out_file": held_out_file,
            "held_out": held_out,
            "on_contamination": on_contamination,
            "on_sensitive": on_sensitive,
            "distillation": distillation,
            "training": training,
            "evaluation": evaluation,
            "gate": gate,
            "deploy": deploy,
            "quote_id": quote_id,
            "engine": engine,
            "hardware": hardware,
        }
        return self._started("pipelines", body)

    @procedure
    def plan(
        self,
        *,
        name: str,
        model: str,
        prompts_file: str | None = None,
        distillation_id: str | None = None,
        held_out_file: str | None = None,
        training: Mapping[str, Any] | None = None,
        evaluation: Mapping[str, Any] | None = None,
        deploy: bool = True,
        engine: Mapping[str, Any] | None = None,
        hardware: str | None = None,
    ) -> Steps[PipelinePlan]:
        """Show how the engines of a pipeline with these arguments would use their memory. Nothing is created."""
        body = {
            "name": name,
            "model": model,
            "prompts_file": prompts_file,
            "distillation_id": distillation_id,
            "held_out_file": held_out_file,
            "training": training,
            "evaluation": evaluation,
            "deploy": deploy,
            "engine": engine,
            "hardware": hardware,
            "validate_only": True,
        }
        return self.http.post(PipelinePlan, "pipelines", body)

    @procedure
    def retrieve(self, pipeline_id: str) -> Steps[Pipeline]:
        return self.http.get(Pipeline, path_of("pipelines", pipeline_id))

    @listing
    def list(self) -> Items[Page[Pipeline]]:
        return self.http.pages(Pipeline, "pipelines")

    @procedure
    def cancel(self, pipeline_id: str) -> Steps[Pipeline]:
        return self.http.post(Pipeline, path_of("pipelines", pipeline_id, "cancel"))

    @procedure
    def resume(self, pipeline_id: str) -> Steps[PipelineRun[D]]:
        """Continue from the stage that failed or was cancelled; the results of earlier stages are kept."""
        return self._started(path_of("pipelines", pipeline_id, "resume"), {})

    @procedure
    def wait(
        self,
        pipeline_id: str,
        *,
        on_progress: Callable[[Pipeline], Any] | None = None,
        poll_seconds: float = 1.0,
        timeout_seconds: float | None = None,
    ) -> Steps[Pipeline]:
        """Return the pipeline when it is live, or has succeeded without deploying.

        Raises:
            PipelineFailed: a stage failed, the gate rejected the speculator, or the pipeline was cancelled.
            WaitTimeout: `timeout_seconds` have passed; the pipeline continues.
        """
        return _wait(self.http, pipeline_id, on_progress, poll_seconds, timeout_seconds)

    def _started(self, path: str, body: Mapping[str, Any]) -> Steps[PipelineRun[D]]:
        values = yield from self.http.post(dict, path, body)
        return PipelineRun[D].from_json({**values, "http": self.http, "driver": self.driver})


def _wait(
    http: Http,
    pipeline_id: str,
    on_progress: Callable[[Pipeline], Any] | None,
    poll_seconds: float,
    timeout_seconds: float | None,
) -> Steps[Pipeline]:
    pipeline = yield from wait_for(
        lambda: http.get(Pipeline, path_of("pipelines", pipeline_id)),
        lambda pipeline: pipeline.is_final,
        poll_seconds=poll_seconds,
        timeout_seconds=timeout_seconds,
        on_progress=on_progress,
    )
    if pipeline.status not in ("live", "succeeded"):
        raise PipelineFailed(pipeline)
    return pipeline
