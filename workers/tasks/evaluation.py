"""Evaluation of a speculator: its report becomes the job's result and the speculator's latest report."""

import json
from collections.abc import Mapping
from typing import Any

from control.catalog.models import BaseModel, Speculator
from control.catalog.services import speculator_report
from control.jobs.failures import Failure
from control.settings.config import get_config
from control.storage import get_storage
from workers.contracts import Checkpoint, EvaluationSpec, ShardDone
from workers.tasks.attempt import Attempt, Ending
from workers.tasks.staging import artifact_prefix, model_dir, stage_file, stage_speculator
from workers.tasks.supervise import run_child
from workers.tasks.training import artifact_path


class EvaluationHandler:
    """`params`: base_model_id, rows_key, speculator_id, drafter, concurrencies, max_tokens, repeats."""

    def run(self, attempt: Attempt) -> Mapping[str, Any]:
        speculator = _speculator(attempt)
        finished = run_child(attempt, _spec(attempt, speculator), on_result=_refuse)
        report: dict[str, Any] = json.loads(artifact_path(finished, "report").read_text())
        plot_key = ""
        if "plot" in finished.artifacts:
            plot_key = f"{artifact_prefix(attempt.claim, 'evaluation')}/report.png"
            get_storage().put_file(plot_key, artifact_path(finished, "plot"))
        attempt.lease.check()
        if speculator is not None:
            speculator_report(speculator=speculator, report=report, plot_key=plot_key)
        return report

    def end(self, attempt: Attempt, ending: Ending, failure: Failure | None) -> None:
        """Nothing is kept of half an evaluation."""


def _refuse(event: ShardDone | Checkpoint) -> None:
    raise AssertionError(f"evaluation makes neither shards nor checkpoints, got {event.event}")


def _speculator(attempt: Attempt) -> Speculator | None:
    speculator_id = attempt.job.params.get("speculator_id")
    if speculator_id is None:
        return None
    return Speculator.objects.get(pk=speculator_id, organization=attempt.job.organization)


def _spec(attempt: Attempt, speculator: Speculator | None) -> EvaluationSpec:
    params = attempt.job.params
    base_model = BaseModel.objects.get(pk=params["base_model_id"])
    return EvaluationSpec(
        job_id=attempt.job.pk,
        model_dir=model_dir(base_model),
        model_name=base_model.name,
        prompts_path=str(stage_file(params["rows_key"], attempt.folder / "rows.jsonl")),
        output_dir=str(attempt.folder / "output"),
        drafter=params["drafter"],
        speculator_dir=stage_speculator(speculator, attempt.folder / "speculator"),
        concurrencies=tuple(params.get("concurrencies", (1,))),
        max_tokens=params.get("max_tokens"),
        repeats=params.get("repeats", 1),
        device=get_config().device,
    )
