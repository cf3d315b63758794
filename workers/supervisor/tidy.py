"""Deletes the objects below the storage prefix `jobs/ID` once the job has ended, except for the job's result.

A killed attempt, or an attempt that has lost its lease, may store objects after `jobs_tidy` has deleted the rest.
`job_untidy` then marks the job, so that `jobs_tidy` handles it once more.
"""

from control.core.storage.backends import get_storage
from control.models.catalog.models import Speculator
from control.queue.jobs.models import Job
from control.queue.jobs.protocol import is_understood
from control.workflows.evaluations.models import Evaluation
from control.workflows.evaluations.services import evaluation_rows_key
from control.workflows.fine_tuning.checkpoints import checkpoints_count
from control.workflows.fine_tuning.selectors import trains_adapter

JOBS_A_ROUND = 20


def jobs_tidy() -> int:
    """Deletes the objects of up to `JOBS_A_ROUND` ended jobs, and returns the number of these jobs.

    The job's database row is changed after its objects are deleted, so a crash between the two steps only repeats the
    deletion.
    """
    untidy = Job.objects.filter(is_understood(), has_stored_work=True, finished_at__isnull=False)
    jobs = list(untidy.order_by("finished_at")[:JOBS_A_ROUND])
    for job in jobs:
        _delete_work(job)
        Job.objects.filter(pk=job.pk).update(has_stored_work=False)
    return len(jobs)


def job_untidy(job_id: str) -> None:
    Job.objects.filter(pk=job_id).update(has_stored_work=True)


def _delete_work(job: Job) -> None:
    storage, folder = get_storage(), f"jobs/{job.pk}"
    result = _result_prefix(job)
    if trains_adapter(job):
        _delete_all_but_adapters(job)
        return
    for name in {name.partition("/")[0] for name in storage.sizes(folder)}:
        if f"{folder}/{name}" != result:
            storage.delete_folder(f"{folder}/{name}")
    evaluation = Evaluation.objects.filter(job=job).first()
    if evaluation is not None:
        storage.delete(evaluation_rows_key(evaluation.organization_id, evaluation.pk))


def _delete_all_but_adapters(job: Job) -> None:
    """Keeps the adapters in the committed checkpoints, because customers may choose one of them after the job's end."""
    storage, folder = get_storage(), f"jobs/{job.pk}"
    sizes = {f"{folder}/{name}": num_bytes for name, num_bytes in storage.sizes(folder).items()}
    for key in sizes.keys() - checkpoints_count(job.pk, sizes):
        storage.delete(key)


def _result_prefix(job: Job) -> str:
    """Returns the storage prefix of the job's result if a speculator or an evaluation refers to it, otherwise ""."""
    match job.kind:
        case Job.Kind.TRAINING:
            speculators = Speculator.objects.filter(pk=job.params.get("speculator_id"))
            return speculators.values_list("storage_prefix", flat=True).first() or ""
        case Job.Kind.EVALUATION:
            return Evaluation.objects.filter(job=job).values_list("plots_prefix", flat=True).first() or ""
        case _:
            return ""
