"""Pipelines: from prompts to a faster endpoint, as one object that can be resumed."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from slipstream.errors import PipelineFailed
from slipstream.http import Http, path_of
from slipstream.types import Pipeline
from slipstream.waiting import wait_for


class Pipelines:
    def __init__(self, http: Http) -> None:
        self._http = http

    def create(
        self,
        *,
        name: str,
        model: str,
        prompts_file: str,
        held_out_file: str | None = None,
        held_out: int | None = None,
        training: Mapping[str, Any] | None = None,
        evaluation: Mapping[str, Any] | None = None,
        gate: Mapping[str, Any] | None = None,
        deploy: bool = True,
    ) -> Pipeline:
        """Start one.

        Args:
            name: also the speculator's and the deployment's: what callers put into `model`.
            held_out_file: prompts to evaluate on. Without it, `held_out` prompts are taken out of `prompts_file`.
            training: {"kind": "medusa", ...hyperparameters}.
            evaluation: {"concurrencies": [1, 4], "max_tokens": 128}.
            gate: {"min_speedup": 1.25, "min_acceptance_length": 1.8, "outputs_equal": True}.
        """
        given = {
            "held_out_file": held_out_file,
            "held_out": held_out,
            "training": training,
            "evaluation": evaluation,
            "gate": gate,
        }
        body = {"name": name, "model": model, "prompts_file": prompts_file, "deploy": deploy}
        body |= {key: value for key, value in given.items() if value is not None}
        return Pipeline.from_json(self._http.post("pipelines", body))

    def retrieve(self, pipeline_id: str) -> Pipeline:
        return Pipeline.from_json(self._http.get(path_of("pipelines", pipeline_id)))

    def list(self) -> Iterator[Pipeline]:
        return (Pipeline.from_json(values) for values in self._http.pages("pipelines"))

    def cancel(self, pipeline_id: str) -> Pipeline:
        return Pipeline.from_json(self._http.post(path_of("pipelines", pipeline_id, "cancel")))

    def resume(self, pipeline_id: str) -> Pipeline:
        """Go on from the stage that failed or was cancelled; what earlier stages made is kept."""
        return Pipeline.from_json(self._http.post(path_of("pipelines", pipeline_id, "resume")))

    def wait(
        self,
        pipeline_id: str,
        *,
        on_progress: Callable[[Pipeline], None] | None = None,
        poll_seconds: float = 1.0,
        timeout_seconds: float | None = None,
    ) -> Pipeline:
        """The pipeline once it is live, or has succeeded where there was nothing to deploy.

        Raises:
            PipelineFailed: a stage failed, the gate said no, or it was cancelled.
            WaitTimeout: the time is up; the pipeline goes on.
        """
        pipeline = wait_for(
            lambda: self.retrieve(pipeline_id),
            lambda pipeline: pipeline.is_final,
            poll_seconds=poll_seconds,
            timeout_seconds=timeout_seconds,
            on_progress=on_progress,
            sleep=self._http.sleep,
        )
        if pipeline.status not in ("live", "succeeded"):
            raise PipelineFailed(pipeline)
        return pipeline
