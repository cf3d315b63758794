"""Adds the gateways' measurements of requests to the evidence of rollouts, and reads it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

import structlog
from django.db import DatabaseError, InterfaceError, transaction

from control.serving.rollouts.decision import Count, Evidence
from control.serving.rollouts.models import Rollout, RolloutEvidence
from control.serving.rollouts.selectors import MEASURED
from control.serving.rollouts.sequential import Sums
from control.tenants.row_security.scope import as_tenant

log = structlog.get_logger(__name__)

Side = RolloutEvidence.Side
Outcome = Literal["complete", "failed", "not_counted"]
Comparison = Literal["equal", "different", "not_comparable", "dropped"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What a gateway has measured of one request. A value is None if it was not measured."""

    organization_id: str
    rollout_id: str
    side: str  # of `RolloutEvidence.Side`
    ended: Outcome = "not_counted"
    passes_per_token: float | None = None
    first_seconds: float | None = None
    inter_seconds: float | None = None
    compared: Comparison | None = None
    request_id: str = ""


def evidence_add(observations: Iterable[Observation]) -> None:
    """Adds the observations of rollouts that are in their trial or are watched; ignores all others.

    If the database fails, the observations are lost. This affects both sides of a comparison alike.
    """
    in_order = sorted(observations, key=_side_of)
    for (organization_id, rollout_id, side), group in groupby(in_order, key=_side_of):
        some = list(group)
        try:
            with as_tenant(organization_id, None), transaction.atomic():
                _add(rollout_id, side, some)
        except (DatabaseError, InterfaceError):  # InterfaceError: the connection was lost
            log.exception("evidence not recorded", rollout_id=rollout_id, num_observations=len(some))


def evidence_start(rollout: Rollout, *sides: str) -> None:
    """Begins to count for these sides. Repeated calls have no effect."""
    rows = [RolloutEvidence(rollout=rollout, organization_id=rollout.organization_id, side=side) for side in sides]
    RolloutEvidence.objects.bulk_create(rows, ignore_conflicts=True)


def evidence_of(rollout: Rollout) -> dict[str, Evidence]:
    """Returns the evidence of each side; a side of which nothing is counted yet has empty evidence."""
    found = {side: Evidence() for side in Side.values}
    for row in RolloutEvidence.objects.filter(rollout=rollout):
        found[row.side] = Evidence(
            num_requests=row.num_requests,
            num_failed=row.num_failed,
            passes=Sums(row.num_measured, row.passes_total, row.passes_variance),
            slow_first=Count(num=row.num_first, num_true=row.num_slow_first),
            slow_inter=Count(num=row.num_inter, num_true=row.num_slow_inter),
            num_equal=row.num_equal,
            num_different=row.num_different,
            num_not_comparable=row.num_not_comparable,
            num_dropped=row.num_dropped,
            different_request=row.different_request,
        )
    return found


def _side_of(observation: Observation) -> tuple[str, str, str]:
    return observation.organization_id, observation.rollout_id, observation.side


def _add(rollout_id: str, side: str, some: Sequence[Observation]) -> None:
    rows = RolloutEvidence.objects.select_for_update(of=("self",)).select_related("rollout")
    row = rows.filter(rollout_id=rollout_id, side=side, rollout__status__in=MEASURED).first()
    if row is None:
        return
    row.num_requests += sum(one.ended == "complete" for one in some)
    row.num_failed += sum(one.ended == "failed" for one in some)
    passes = Sums(row.num_measured, row.passes_total, row.passes_variance)
    passes = passes.plus([one.passes_per_token for one in some if one.passes_per_token is not None])
    row.num_measured, row.passes_total, row.passes_variance = passes.num, passes.total, passes.variance
    first, inter = row.rollout.first_token_seconds, row.rollout.inter_token_seconds
    for one in some:
        if first is not None and one.first_seconds is not None:
            row.num_first += 1
            row.num_slow_first += one.first_seconds > first
        if inter is not None and one.inter_seconds is not None:
            row.num_inter += 1
            row.num_slow_inter += one.inter_seconds > inter
    row.num_equal += sum(one.compared == "equal" for one in some)
    row.num_different += sum(one.compared == "different" for one in some)
    row.num_not_comparable += sum(one.compared == "not_comparable" for one in some)
    row.num_dropped += sum(one.compared == "dropped" for one in some)
    differing = next((one.request_id for one in some if one.compared == "different"), "")
    row.different_request = row.different_request or differing[:200]
    row.save()
