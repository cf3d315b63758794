"""Evaluations as the API shows them."""

from typing import Any

from control.core.api.times import unix
from control.queue.jobs.models import Job
from control.queue.jobs.serializers import progress_json
from control.workflows.evaluations.models import Evaluation


def evaluation_body(evaluation: Evaluation) -> dict[str, Any]:
    job = evaluation.job
    certificate = evaluation.certificate
    return {
        "id": evaluation.pk,
        "object": "evaluation",
        "status": job.status,
        "speculator_id": evaluation.speculator_id,
        "model": evaluation.speculator.base_model.name,
        "prompts_file": evaluation.prompts_file_id,
        **evaluation.settings,
        "job_id": job.pk,
        "progress": progress_json(job),
        "metrics": job.metrics,
        "result": None if certificate is None else certificate["statement"]["result"],
        "report": job.result if job.status == Job.Status.SUCCEEDED else None,
        "error": job.error,
        "created_at": unix(evaluation.created_at),
        "started_at": unix(job.started_at),
        "finished_at": unix(job.finished_at),
    }
