"""Creates, resumes, repairs, validates and cancels batches, and commits their shards. `assemble` assembles the results.

Storage keys of a batch, below `<organization>/batches/<batch>/`:
    rows.jsonl               normalised rows, for workers
    output-<hash>.jsonl ...  results; see `assemble`
"""

import datetime as dt
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from django.db import transaction
from django.db.models import F
from django.utils import timezone

from control.billing.usage.selectors import require_price
from control.billing.usage.services import Tokens, caller_of_job, usage_add
from control.core.api.errors import ApiError
from control.core.ids import batch_id
from control.core.settings.config import get_config
from control.core.storage.backends import ObjectMissing, get_storage
from control.core.storage.staging import staged_writer
from control.data.files.models import File
from control.data.files.selectors import batch_file_check, file_get
from control.models.catalog.models import BaseModel
from control.models.catalog.selectors import base_model_get, base_models_list
from control.models.engines.planning import Purpose, Workload, engine_plan, memory_needed
from control.models.engines.schemas import EngineOptions
from control.queue.jobs.fair import NORMAL, level_of
from control.queue.jobs.models import Job, JobShard
from control.queue.jobs.services import job_cancel, job_submit
from control.queue.jobs.shards import ShardRows, job_commit_shard
from control.queue.jobs.state import Claim, job_lock
from control.tenants.accounts.models import Organization
from control.tenants.audit.record import audited
from control.tenants.quotas.quota import organization_lock
from control.workflows.batches.choosing import Choice, RerunWriter, RowClass, choice_check
from control.workflows.batches.copying import Copied, results_copy
from control.workflows.batches.models import Batch
from control.workflows.batches.selectors import require_results
from control.workflows.batches.state import RESUMABLE, TERMINAL, Status, transition
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
    on_truncation: str = Batch.OnTruncation.KEEP,
    max_continued_tokens: int | None = None,
    engine: EngineOptions | None = None,
    priority: str = NORMAL,
    hardware: str = "",
) -> Batch:
    """Queues a batch. The content of the file is validated later; if it is invalid, the batch becomes `failed`.

    Args:
        model: name of the base model for rows with an empty `body.model`. If given, no row may name another model.
        quote: the batch is paused when its cost reaches the cap of this quote.
        on_truncation, max_continued_tokens: as in `DistillationOptions`, which has checked them.
        priority: a name in `fair.LEVELS`.
        hardware: see `Job.hardware`.
    Raises: ApiError: 400, an argument is invalid, or the model does not fit into the memory of any device; 403, the
        model has no price; 404, no such model.
    """
    if endpoint not in ENDPOINTS:
        raise ApiError(400, f"endpoint must be one of {ENDPOINTS}, got {endpoint[:80]!r}", "invalid_value", "endpoint")
    if completion_window not in COMPLETION_WINDOWS:
        message = f"completion_window must be one of {list(COMPLETION_WINDOWS)}, got {completion_window[:40]!r}"
        raise ApiError(400, message, "invalid_value", "completion_window")
    batch_file_check(input_file, param="input_file_id")
    assert input_file.organization_id == organization.pk, "callers find the file through file_get"
    base_model = base_model_get(organization, model) if model else None
    if base_model is not None:
        require_price(base_model_id=base_model.pk, name=base_model.name)
    workload = Workload(purpose=Purpose.BATCH, base_model=base_model, hardware=hardware)
    engine_plan(engine or EngineOptions(), workload)
    return _queue(
        organization=organization,
        input_file=input_file,
        base_model=base_model,
        endpoint=endpoint,
        completion_window=completion_window,
        metadata=dict(metadata or {}),
        output_expires_after=output_expires_after,
        quote=quote,
        on_truncation=on_truncation,
        max_continued_tokens=max_continued_tokens,
        engine=None if engine is None else engine.model_dump(),
        priority=priority,
        hardware=hardware,
    )


@audited("batch.resume")
@transaction.atomic
def batch_resume(*, batch: Batch) -> Batch:
    """Queues a new batch with the same options. It copies the finished rows of the ended batch and runs all other rows.

    The finished rows are copied later, by the worker (`copying`).
    Raises: ApiError: 400, the batch has not ended, is completed, or ended before its input file was validated; 403, the
        model has no price; 404, the model, the input file or the results are deleted; 409, another batch has resumed or
        repaired it, or its model's name now means another model; 429, too many jobs are queued.
    """
    _ended_check(batch, RESUMABLE, "resume")
    return _continue(batch, _repair_of({RowClass.UNFINISHED}, _max_tokens_of(batch)))


@audited("batch.repair")
@transaction.atomic
def batch_repair(*, batch: Batch, rows: Collection[str], max_tokens: int | None = None) -> Batch:
    """Queues a new batch, which answers the rows of some classes again and copies the results of all others.

    Args:
        rows: names of `RowClass`.
        max_tokens: limit of the new answers; None: as in `batch`.
    Raises: ApiError: as `batch_resume`, but a completed batch can be repaired; 400 also if no row is in the classes, or
        the limit does not fit in the context or is missing.
    """
    _ended_check(batch, TERMINAL, "repair")
    classes = frozenset(RowClass(name) for name in rows)
    choice_check(batch, Choice(classes=classes, max_tokens=max_tokens))
    return _continue(batch, _repair_of(classes, _max_tokens_of(batch) if max_tokens is None else max_tokens))


def _repair_of(classes: Collection[RowClass], max_tokens: int | None) -> dict[str, Any] | None:
    """Returns the value of `Batch.repair`."""
    if max_tokens is None and classes == {RowClass.UNFINISHED}:
        return None
    return {"rows": [name.value for name in RowClass if name in classes], "max_tokens": max_tokens}


def _max_tokens_of(batch: Batch) -> int | None:
    """Returns the limit that the batch sets for the rows that it answers again, or None."""
    return None if batch.repair is None else batch.repair["max_tokens"]


def _ended_check(batch: Batch, statuses: Collection[str], verb: str) -> None:
    if batch.status not in statuses:
        message = f"Cannot {verb} a batch with status '{batch.status}'."
        raise ApiError(400, message, "invalid_batch_status", "batch_id")
    if not batch.total:
        message = f"Cannot {verb} a batch that ended before its input file was validated."
        raise ApiError(400, message, "batch_without_rows", "batch_id")


def _continue(batch: Batch, repair: dict[str, Any] | None) -> Batch:
    """Queues the batch that resumes or repairs an ended one. Raises: ApiError: as `batch_resume`."""
    organization, model = batch.organization, batch.base_model
    assert model is not None, "validation sets the model"
    organization_lock(organization.pk)  # the second of two concurrent calls then sees the batch of the first
    # A resumption that failed, expired or was cancelled does not count: this batch may then be resumed again.
    if resumption := batch.resumptions.exclude(status__in=RESUMABLE).first():
        verb = "resumed" if resumption.repair is None else "repaired"
        message = f"Batch {batch.pk} has already been {verb} by batch {resumption.pk}."
        raise ApiError(409, message, "batch_already_resumed", "batch_id")
    if base_model_get(organization, model.name).pk != model.pk:
        message = f"The model {model.name!r} is not the one that answered the finished rows of this batch."
        raise ApiError(409, message, "model_changed", "batch_id")
    require_price(base_model_id=model.pk, name=model.name)
    require_results(batch)
    return _queue(
        organization=organization,
        input_file=file_get(organization, batch.input_file_id, param="batch_id"),
        base_model=model,
        endpoint=batch.endpoint,
        completion_window=batch.completion_window,
        metadata=batch.metadata,
        output_expires_after=batch.output_expires_after,
        quote=batch.quote,
        on_truncation=batch.on_truncation,
        max_continued_tokens=batch.max_continued_tokens,
        engine=batch.engine,
        priority=level_of(batch.job),
        hardware=batch.job.hardware,
        resumed_from=batch,
        repair=repair,
    )


def batch_memory_needed(*, base_model: BaseModel | None, engine: Mapping[str, Any] | None) -> dict[str, int]:
    """Returns the memory that the batch's job needs, see `memory_needed`."""
    options = EngineOptions.model_validate(engine or {})
    return memory_needed(options, Workload(purpose=Purpose.BATCH, base_model=base_model))


def _queue(*, organization: Organization, completion_window: str, priority: str, hardware: str, **values: Any) -> Batch:
    """Creates a batch and its job. Args: values: other columns of the batch."""
    identity, engine = batch_id(), values.get("engine")
    params = {"batch_id": identity, "rows_key": f"{organization.pk}/batches/{identity}/rows.jsonl"}
    if (rows := (engine or {}).get("max_concurrency")) is not None:
        params["max_batch_size"] = rows  # after an attempt that ran out of memory, the retry halves this number
    with transaction.atomic():
        job = job_submit(
            organization=organization,
            kind=Job.Kind.BATCH,
            params=params,
            memory_needed=batch_memory_needed(base_model=values.get("base_model"), engine=engine),
            priority=priority,
            hardware=hardware,
        )
        return Batch.objects.create(
            id=identity,
            organization=organization,
            job=job,
            completion_window=completion_window,
            expires_at=timezone.now() + COMPLETION_WINDOWS[completion_window],
            **values,
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
        job_lock(batch.job_id)  # locked before the batch: `queue.jobs.state` has the order of locks
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
        try:
            copied = _copied(batch)
            report = _read_input(batch, RerunWriter(writer.write, copied.reruns).write)
            if report.num_errors:
                return _reject(batch, report)
            base_model = base_model_get(batch.organization, report.model or "")
            # The rows name the model, which may have been unknown when the batch was created.
            require_price(base_model_id=base_model.pk, name=base_model.name)
        except ApiError as error:
            entry = {"code": error.code, "line": None, "message": error.message, "param": error.param}
            return _reject(batch, Report(errors=[entry], num_errors=1))
        get_storage().put_file(rows_key, writer.finish().path)
    with transaction.atomic():
        moved = transition(
            batch,
            Status.IN_PROGRESS,
            total=report.num_rows,
            base_model=base_model,
            warnings=report.warnings,
            copied=sum(shard.completed + shard.failed for shard in copied.shards),
        )
        if moved:
            JobShard.objects.bulk_create(_shards(batch.job, report.num_rows, copied.shards))
    return batch.status == Status.IN_PROGRESS


def _copied(batch: Batch) -> Copied:
    """Raises: ApiError: the results are deleted."""
    if batch.resumed_from is None:
        return Copied(shards=(), reruns={})
    return results_copy(of=batch.resumed_from, job=batch.job, choice=Choice.of(batch))


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


def _read_input(batch: Batch, write: Callable[[bytes], object]) -> Report:
    try:
        source = get_storage().open(batch.input_file.storage_key)
    except ObjectMissing:
        message = f"The input file {batch.input_file_id} was deleted before it could be read."
        error = {"code": "file_not_found", "line": None, "message": message, "param": "input_file_id"}
        return Report(errors=[error], num_errors=1)
    with source:
        return validate(source, endpoint=batch.endpoint, models=_model_choice(batch), write=write)


def _model_choice(batch: Batch) -> ModelChoice:
    visible = frozenset(base_models_list(batch.organization).values_list("name", flat=True))
    if batch.base_model is not None:
        return ModelChoice(visible=visible | {batch.base_model.name}, default=batch.base_model.name, is_fixed=True)
    only = next(iter(visible)) if len(visible) == 1 else None
    return ModelChoice(visible=visible, default=only, is_fixed=False)


def _reject(batch: Batch, report: Report) -> bool:
    transition(batch, Status.FAILED, errors=report.errors, num_errors=report.num_errors, warnings=report.warnings)
    return False


def _shards(job: Job, num_rows: int, copied: Sequence[JobShard]) -> list[JobShard]:
    """Divides the rows into the copied shards and, between them, shards to be run.

    The first shard to be run has `FIRST_SHARD_ROWS` rows, and each next one twice as many up to the normal size. The
    first commit then comes early, even on a machine that is soon preempted.
    """
    shards: list[JobShard] = []
    first, size = 0, FIRST_SHARD_ROWS
    for following in (*copied, None):
        end = num_rows if following is None else following.row_from
        while first < end:
            last = min(first + min(size, get_config().shard_rows), end)
            shards.append(JobShard(job=job, row_from=first, row_to=last))
            first, size = last, 2 * size
        if following is not None:
            shards.append(following)
            first = following.row_to
    for number, shard in enumerate(shards):
        shard.shard_no = number
    return shards
