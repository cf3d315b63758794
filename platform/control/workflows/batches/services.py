"""Creates, validates and cancels batches, and commits their shards. `assemble` assembles the results.

Storage keys of a batch, below `<organization>/batches/<batch>/`:
    rows.jsonl               normalised rows, for workers
    output-<hash>.jsonl ...  results; see `assemble`
"""

import datetime as dt
from collections.abc import Mapping

from django.db import transaction
from django.db.models import F
from django.utils import timezone

from control.billing.usage.selectors import require_price
from control.billing.usage.services import Tokens, caller_of_job, usage_add
from control.core.api.errors import ApiError
from control.core.ids import batch_id
from control.core.settings.config import get_config
from control.core.storage.backends import ObjectMissing, get_storage
from control.core.storage.staging import StagedWriter, staged_writer
from control.data.files.models import File
from control.models.catalog.selectors import base_model_get, base_models_list
from control.queue.jobs.models import Job, JobShard
from control.queue.jobs.services import job_cancel, job_submit
from control.queue.jobs.shards import ShardRows, job_commit_shard
from control.queue.jobs.state import Claim, job_lock
from control.tenants.accounts.models import Organization
from control.tenants.audit.record import audited
from control.workflows.batches.models import Batch
from control.workflows.batches.state import TERMINAL, Status, transition
from control.workflows.prompt_files.rows import ENDPOINTS
from control.workflows.prompt_files.validation import ModelChoice, Report, validate
from control.workflows.quotes.models import Quote

FIRST_SHARD_ROWS = 4
COMPLETION_WINDOWS = {"24h": dt.timedelta(hours=24)}


@audited("batch.create")
def batch_create(
    *,
    organization: Organization,
    input_file: File,
    endpoint: str,
    completion_window: str = "24h",
    metadata: Mapping[str, str] | None = None,
    model: str | None = None,
    output_expires_after: dt.timedelta | None = None,
    quote: Quote | None = None,
) -> Batch:
    """Queues a batch. The content of the file is validated later; if it is invalid, the batch becomes `failed`.

    Args:
        model: name of the base model for rows with an empty `body.model`. If given, no row may name another model.
        quote: the quote whose cap pauses the batch.
    Raises: ApiError: 400 or 404, the request itself is invalid; 403, the model has no price.
    """
    if endpoint not in ENDPOINTS:
        raise ApiError(400, f"endpoint must be one of {ENDPOINTS}, got {endpoint[:80]!r}", "invalid_value", "endpoint")
    if completion_window not in COMPLETION_WINDOWS:
        message = f"completion_window must be one of {list(COMPLETION_WINDOWS)}, got {completion_window[:40]!r}"
        raise ApiError(400, message, "invalid_value", "completion_window")
    if input_file.purpose != File.Purpose.BATCH:
        message = f"input_file_id must name a file with purpose 'batch', got one with purpose {input_file.purpose!r}"
        raise ApiError(400, message, "invalid_value", "input_file_id")
    assert input_file.organization_id == organization.pk, "callers find the file through file_get"
    base_model = base_model_get(organization, model) if model else None
    if base_model is not None:
        require_price(base_model_id=base_model.pk, name=base_model.name)
    identity = batch_id()
    with transaction.atomic():
        job = job_submit(
            organization=organization,
            kind=Job.Kind.BATCH,
            params={"batch_id": identity, "rows_key": f"{organization.pk}/batches/{identity}/rows.jsonl"},
        )
        return Batch.objects.create(
            id=identity,
            organization=organization,
            job=job,
            input_file=input_file,
            base_model=base_model,
            endpoint=endpoint,
            completion_window=completion_window,
            metadata=dict(metadata or {}),
            output_expires_after=output_expires_after,
            quote=quote,
            expires_at=timezone.now() + COMPLETION_WINDOWS[completion_window],
        )


def batch_window_restart(*, batch: Batch) -> None:
    """Restarts the completion window, so that a pause by the customer does not shorten it."""
    until = timezone.now() + COMPLETION_WINDOWS[batch.completion_window]
    Batch.objects.filter(pk=batch.pk).exclude(status__in=TERMINAL).update(expires_at=until)


@audited("batch.cancel")
def batch_cancel(*, batch: Batch) -> Batch:
    """Requests the cancellation. The worker that has claimed the job assembles the finished rows.

    A batch that is cancelled, being cancelled or being finalized is returned unchanged.
    Raises: ApiError: 400, the batch has ended with another status.
    """
    with transaction.atomic():
        job_lock(batch.job_id)  # before the batch, in the order of `queue.jobs.state`
        if transition(batch, Status.CANCELLING):
            job_cancel(job=batch.job)
    if batch.status in TERMINAL - {Status.CANCELLED}:
        message = f"Cannot cancel a batch with status '{batch.status}'."
        raise ApiError(400, message, "invalid_batch_status", "batch_id")
    return batch


def batch_validate(*, batch: Batch) -> bool:
    """Validates the input file. If it is valid, stores its rows for workers and divides them into shards.

    May be called at any time and by several workers at once: the same file gives the same rows, and only one caller
    changes the batch's status.

    Returns: whether the batch is in progress. False: it has failed or is being cancelled.
    """
    batch.refresh_from_db()
    if batch.status != Status.VALIDATING:
        return batch.status == Status.IN_PROGRESS
    rows_key: str = batch.job.params["rows_key"]
    with staged_writer() as writer:
        report = _read_input(batch, writer)
        if report.num_errors:
            return _reject(batch, report)
        base_model = base_model_get(batch.organization, report.model or "")
        try:
            require_price(base_model_id=base_model.pk, name=base_model.name)
        except ApiError as error:  # the rows name the model, which was unknown when the batch was created
            entry = {"code": error.code, "line": None, "message": error.message, "param": "model"}
            return _reject(batch, Report(errors=[entry], num_errors=1))
        get_storage().put_file(rows_key, writer.finish().path)
    with transaction.atomic():
        moved = transition(
            batch,
            Status.IN_PROGRESS,
            total=report.num_rows,
            base_model=base_model,
            warnings=report.warnings,
        )
        if moved:
            JobShard.objects.bulk_create(_shards(batch.job, report.num_rows))
    return batch.status == Status.IN_PROGRESS


def batch_commit_shard(*, batch: Batch, claim: Claim, shard_no: int, storage_key: str, rows: ShardRows) -> bool:
    """Commits one worker's result of a shard, and charges for its tokens in the same transaction.

    Returns: False if another result of the shard was committed first; then nothing changes. Raises: LeaseLost.
    """
    assert batch.base_model is not None, "validation sets the model"
    with transaction.atomic():
        if not job_commit_shard(claim=claim, shard_no=shard_no, storage_key=storage_key, rows=rows):
            return False
        cost = usage_add(
            caller=caller_of_job(job_id=batch.job_id, organization_id=batch.organization_id),
            model=batch.base_model.name,
            base_model_id=batch.base_model.pk,
            tokens=Tokens(input=rows.usage.get("prompt_tokens", 0), output=rows.usage.get("completion_tokens", 0)),
            num_requests=rows.completed + rows.failed,
            is_batch=True,
            object_id=batch.pk,
            sequence=str(shard_no),
        )
        Batch.objects.filter(pk=batch.pk).update(cost_nanousd=F("cost_nanousd") + cost)
    return True


def _read_input(batch: Batch, writer: StagedWriter) -> Report:
    try:
        source = get_storage().open(batch.input_file.storage_key)
    except ObjectMissing:
        message = f"The input file {batch.input_file_id} was deleted before it could be read."
        error = {"code": "file_not_found", "line": None, "message": message, "param": "input_file_id"}
        return Report(errors=[error], num_errors=1)
    with source:
        return validate(source, endpoint=batch.endpoint, models=_model_choice(batch), write=writer.write)


def _model_choice(batch: Batch) -> ModelChoice:
    visible = frozenset(base_models_list(batch.organization).values_list("name", flat=True))
    if batch.base_model is not None:
        return ModelChoice(visible=visible | {batch.base_model.name}, default=batch.base_model.name, is_fixed=True)
    only = next(iter(visible)) if len(visible) == 1 else None
    return ModelChoice(visible=visible, default=only, is_fixed=False)


def _reject(batch: Batch, report: Report) -> bool:
    transition(batch, Status.FAILED, errors=report.errors, num_errors=report.num_errors, warnings=report.warnings)
    return False


def _shards(job: Job, num_rows: int) -> list[JobShard]:
    """The first shard has `FIRST_SHARD_ROWS` rows, and each next one twice as many up to the normal size.

    The first commit then comes early, even on a machine that is soon preempted.
    """
    shards: list[JobShard] = []
    first, size = 0, FIRST_SHARD_ROWS
    while first < num_rows:
        last = min(first + min(size, get_config().shard_rows), num_rows)
        shards.append(JobShard(job=job, shard_no=len(shards), row_from=first, row_to=last))
        first, size = last, 2 * size
    return shards
