"""The legal transitions of a round.

capturing ─> distilling ─> training ─> evaluating ─> gating ─> rolling_out ─> promoted | rolled_back
                 └────────────┴────────────┴───────────┴─> rejected
any of the first six statuses ─> failed | stopped

From `distilling` to `evaluating` the round follows its pipeline. If the pipeline passes several stages between two
calls, the round skips the statuses in between.
"""

from collections.abc import Mapping
from typing import Any

from django.db import transaction
from django.utils import timezone

from control.tenants.events.services import event_record
from control.workflows.loops.models import LoopRound

Status = LoopRound.Status

_ORDER = (
    Status.CAPTURING, Status.DISTILLING, Status.TRAINING, Status.EVALUATING, Status.GATING, Status.ROLLING_OUT,
)  # fmt: skip
ACTIVE = frozenset(_ORDER)
_FOLLOWS_PIPELINE = _ORDER[1:4]
_ENDED_EARLY = frozenset({Status.FAILED, Status.STOPPED})
LEGAL_MOVES: Mapping[Status, frozenset[Status]] = {
    Status.CAPTURING: frozenset({Status.DISTILLING}) | _ENDED_EARLY,
    **{
        status: frozenset({*_ORDER[place + 2 : 5], Status.REJECTED}) | _ENDED_EARLY
        for place, status in enumerate(_FOLLOWS_PIPELINE)
    },
    Status.GATING: frozenset({Status.ROLLING_OUT, Status.REJECTED}) | _ENDED_EARLY,
    Status.ROLLING_OUT: frozenset({Status.PROMOTED, Status.ROLLED_BACK}) | _ENDED_EARLY,
    **dict.fromkeys((status for status in Status if status not in ACTIVE), frozenset[Status]()),
}


def transition(of: LoopRound, to: Status, **values: Any) -> bool:
    """Changes the status unless it has changed since `of` was read; records the event in the same transaction.

    Returns: False if another process changed the status first.
    """
    origin, now = Status(of.status), timezone.now()
    assert to in LEGAL_MOVES[origin], f"a round cannot go from {origin} to {to}"
    timeline = [*of.timeline, {"status": to.value, "at": int(now.timestamp())}]
    finished_at = None if to in ACTIVE else now
    with transaction.atomic():
        moved = LoopRound.objects.filter(pk=of.pk, status=origin).update(
            status=to, timeline=timeline, changed_at=now, finished_at=finished_at, **values
        )
        if moved:
            event_record(
                organization_id=of.organization_id,
                project_id=of.project_id,
                type=f"loop.round.{to.value}",
                object_id=of.pk,
            )
    return bool(moved)
