"""The legal transitions of a batch, and the function that makes them.

validating ──> in_progress ──> finalizing ──> completed | expired | failed | cancelled
    │               │
    ├──> failed     └──> cancelling ──> cancelled
    ├──> expired
    └──> cancelling
"""

from collections.abc import Mapping
from typing import Any

from django.db import transaction
from django.utils import timezone

from control.tenants.events.services import event_record
from control.workflows.batches.models import Batch

Status = Batch.Status

LEGAL_MOVES: Mapping[Status, frozenset[Status]] = {
    Status.VALIDATING: frozenset({Status.IN_PROGRESS, Status.FAILED, Status.EXPIRED, Status.CANCELLING}),
    Status.IN_PROGRESS: frozenset({Status.FINALIZING, Status.CANCELLING}),
    # FINALIZING may lead to CANCELLED: the worker that finalized the batch died, and the job was then cancelled.
    Status.FINALIZING: frozenset({Status.COMPLETED, Status.EXPIRED, Status.FAILED, Status.CANCELLED}),
    Status.CANCELLING: frozenset({Status.CANCELLED}),
    Status.COMPLETED: frozenset(),
    Status.FAILED: frozenset(),
    Status.EXPIRED: frozenset(),
    Status.CANCELLED: frozenset(),
}
TERMINAL = frozenset(status for status, moves in LEGAL_MOVES.items() if not moves)
RESUMABLE = TERMINAL - {Status.COMPLETED}  # statuses of batches that a new batch may resume


def transition(batch: Batch, to: Status, **values: Any) -> bool:
    """Sets the status to `to` in one compare-and-swap, and stores the time in the column named after that status.

    Records the event in the same transaction.

    Returns: False if the batch's status may not change to `to`; then nothing changes.
    Effects: `batch` is read again from the database in both cases.
    """
    origins = [status for status, moves in LEGAL_MOVES.items() if to in moves]
    values = {"status": to, f"{to.value}_at": timezone.now(), **values}
    with transaction.atomic():
        moved = Batch.objects.filter(pk=batch.pk, status__in=origins).update(**values)
        if moved:
            event_record(
                organization_id=batch.organization_id,
                project_id=batch.project_id,
                type=f"batch.{to.value}",
                object_id=batch.pk,
            )
        batch.refresh_from_db()
    return bool(moved)
