"""The legal transitions of a pipeline, and the stage that each status belongs to.

distilling ─> training ─> evaluating ─> gating ─> deploying ─> live
                                          ├─> succeeded   (the customer wants no deployment)
                                          └─> rejected    (the report does not pass the gate)
any of the first five statuses ─> failed | cancelled ─> the same status again (resume)
"""

from collections.abc import Mapping
from typing import Any

from django.db import transaction
from django.utils import timezone

from control.tenants.events.services import event_record
from control.workflows.pipelines.models import Pipeline, PipelineEvent

Status = Pipeline.Status

STAGES: Mapping[Status, str] = {
    Status.DISTILLING: "distil",
    Status.TRAINING: "train",
    Status.EVALUATING: "evaluate",
    Status.GATING: "gate",
    Status.DEPLOYING: "deploy",
}
ACTIVE = frozenset(STAGES)
RESUMABLE = frozenset({Status.FAILED, Status.CANCELLED})
_ENDED_EARLY = RESUMABLE
_FINE_TUNING_ENDS: Mapping[Status, str] = {
    Status.LIVE: "succeeded",
    Status.SUCCEEDED: "succeeded",
    Status.REJECTED: "failed",
    Status.FAILED: "failed",
    Status.CANCELLED: "cancelled",
}
LEGAL_MOVES: Mapping[Status, frozenset[Status]] = {
    Status.DISTILLING: frozenset({Status.TRAINING}) | _ENDED_EARLY,
    Status.TRAINING: frozenset({Status.EVALUATING}) | _ENDED_EARLY,
    Status.EVALUATING: frozenset({Status.GATING}) | _ENDED_EARLY,
    Status.GATING: frozenset({Status.DEPLOYING, Status.SUCCEEDED, Status.REJECTED}) | _ENDED_EARLY,
    Status.DEPLOYING: frozenset({Status.LIVE}) | _ENDED_EARLY,
    Status.FAILED: ACTIVE,
    Status.CANCELLED: ACTIVE,
    Status.LIVE: frozenset(),
    Status.SUCCEEDED: frozenset(),
    Status.REJECTED: frozenset(),
}


def transition(pipeline: Pipeline, to: Status, *, data: Mapping[str, Any] | None = None, **values: Any) -> bool:
    """Changes the status unless it has changed since `pipeline` was read; records the event in the same transaction.

    Returns: False if another process changed the status first.
    """
    origin = Status(pipeline.status)
    assert to in LEGAL_MOVES[origin], f"a pipeline cannot go from {origin} to {to}"
    finished_at = None if to in ACTIVE else timezone.now()
    with transaction.atomic():
        moved = Pipeline.objects.filter(pk=pipeline.pk, status=origin).update(
            status=to, finished_at=finished_at, **values
        )
        if moved:
            stage = STAGES.get(origin) or STAGES.get(to)
            PipelineEvent.objects.create(pipeline=pipeline, status=to, data={"stage": stage, **(data or {})})
            _record_events(pipeline, to)
    return bool(moved)


def _record_events(pipeline: Pipeline, to: Status) -> None:
    """Records the event of the pipeline and, if `to` ends it, the event of its fine-tuning job."""
    event_record(
        organization_id=pipeline.organization_id,
        project_id=pipeline.project_id,
        type=f"pipeline.{to.value}",
        object_id=pipeline.pk,
    )
    if end := _FINE_TUNING_ENDS.get(to):
        job_id = Pipeline.objects.values_list("fine_tuning_job", flat=True).get(pk=pipeline.pk)
        if job_id is not None:
            event_record(
                organization_id=pipeline.organization_id,
                project_id=pipeline.project_id,
                type=f"fine_tuning.job.{end}",
                object_id=job_id,
            )


def stage_at_end(pipeline: Pipeline) -> str | None:
    """The stage in which a pipeline ended."""
    last = PipelineEvent.objects.filter(pipeline=pipeline).order_by("-id").first()
    return None if last is None else last.data.get("stage")
