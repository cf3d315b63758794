"""The job that evaluates a speculator at several concurrencies. A retry begins after the last concurrency measured.

The report becomes the result of the job, and the evidence (see `workers.inference.evidence`) is signed.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from control.core.storage.backends import get_storage
from control.models.catalog.models import Speculator
from control.models.engines.schemas import EngineOptions
from control.queue.jobs.failures import Failure
from control.workflows.evaluations.arms import Arm, compares
from control.workflows.evaluations.models import Evaluation
from control.workflows.evaluations.services import evaluation_finish
from control.workflows.speculators.answer_examples import EXAMPLES_FILE
from workers.contracts import ComparedArm, EvaluationSpec, FailureClass, Finished, file_sha256
from workers.supervisor.attempt import Attempt, Ending
from workers.supervisor.outcomes import AttemptFailed
from workers.supervisor.quote_caps import pause_at_cap
from workers.supervisor.results import artifact_path, commit_checkpoint, stage_checkpoint
from workers.supervisor.run_child import run_child
from workers.supervisor.staging import artifact_prefix, model_dir, stage_file, stage_speculator

_STORED = {"report": "report.json", "plot": "report.png", "drawing": "report.svg", "examples": EXAMPLES_FILE}


class EvaluationHandler:
    """Handles evaluation jobs. `params`: rows_key, drafter, concurrencies, max_tokens, repeats, price_per_gpu_hour,
    engine, training_seconds, compare_with, compared."""

    def run(self, attempt: Attempt) -> Mapping[str, Any]:
        evaluation = Evaluation.objects.select_related("speculator__base_model", "prompts_file").get(
            job_id=attempt.job.pk
        )
        pause_at_cap(attempt)
        finished = run_child(
            attempt, _spec(attempt, evaluation), on_result=lambda event: commit_checkpoint(attempt, event)
        )
        report, evidence = (_read(finished, name) for name in ("report", "evidence"))
        evidence["report_sha256"] = file_sha256(artifact_path(finished, "report"))
        if evidence["model_sha256"] != evaluation.speculator.target_revision:
            message = "The model's files are not those that the speculator was trained for."
            raise AttemptFailed(FailureClass.USER_CONFIG, "model_changed", message)
        prefix = artifact_prefix(attempt.claim, "evaluation")
        for name, file in _STORED.items():
            get_storage().put_file(f"{prefix}/{file}", artifact_path(finished, name))
        attempt.lease.check()
        evaluation_finish(evaluation=evaluation, report=report, evidence=evidence, plots_prefix=prefix)
        return report

    def end(self, attempt: Attempt, ending: Ending, failure: Failure | None) -> None:
        """Does nothing: an incomplete evaluation has no results."""


def _read(finished: Finished, name: str) -> dict[str, Any]:
    values: dict[str, Any] = json.loads(artifact_path(finished, name).read_text())
    return values


def _further_arms(attempt: Attempt, evaluation: Evaluation) -> Iterator[ComparedArm]:
    """Yields the arms that need an engine of their own, with staged speculators."""
    params = attempt.job.params  # jobs of earlier releases have no further arms
    compared = params.get("compared", {})
    rows = Speculator.objects.filter(organization_id=evaluation.organization_id).select_related("base_speculator")
    speculators = rows.in_bulk(list(compared))
    for name in params.get("compare_with", []):
        if name in compared:
            folder = stage_speculator(speculators[name], attempt.folder / "further" / name)
            yield ComparedArm(name=name, drafter=compared[name], speculator_dir=folder)
        elif Arm(name).needs_engine:
            yield ComparedArm(name=name, drafter=name)


def _spec(attempt: Attempt, evaluation: Evaluation) -> EvaluationSpec:
    params, speculator = attempt.job.params, evaluation.speculator
    options = EngineOptions.model_validate(params.get("engine") or {})  # jobs of earlier releases have no options
    return EvaluationSpec(
        job_id=attempt.job.pk,
        model_dir=model_dir(speculator.base_model),
        model_name=speculator.base_model.name,
        prompts_path=str(stage_file(params["rows_key"], attempt.folder / "rows.jsonl")),
        output_dir=str(attempt.folder / "output"),
        checkpoint_dir=str(stage_checkpoint(attempt)),
        drafter=params["drafter"],
        speculator_dir=stage_speculator(speculator, attempt.folder / "speculator"),
        concurrencies=tuple(params["concurrencies"]),
        max_tokens=params["max_tokens"],
        repeats=params["repeats"],
        price_per_gpu_hour=params["price_per_gpu_hour"],
        training_seconds=params["training_seconds"],
        max_concurrency=options.max_concurrency,
        weights=options.weights,
        kv_dtype=options.kv_dtype,
        max_context=options.max_context,
        memory_share=options.memory_share,
        draft_budget=options.draft_budget,
        device=attempt.device,
        speculator_name=speculator.pk,
        compare_with=tuple(_further_arms(attempt, evaluation)),
        reports_arms=compares(params),
    )
