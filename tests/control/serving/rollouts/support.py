"""Helpers for tests of rollouts: evidence, as gateways would add it."""

from dataclasses import replace

from control.serving.rollouts.evidence import Observation, Side, evidence_add
from control.serving.rollouts.models import Rollout


def add_evidence(
    rollout: Rollout,
    side: str,
    *,
    num_requests: int = 0,
    acceptance_length: float = 2.0,
    num_failed: int = 0,
    num_equal: int = 0,
    num_different: int = 0,
    first_seconds: float | None = None,
) -> None:
    """Adds requests that all have the same acceptance length."""
    request = Observation(organization_id=rollout.organization_id, rollout_id=rollout.pk, side=side)
    complete = replace(request, ended="complete", passes_per_token=1.0 / acceptance_length, first_seconds=first_seconds)
    observations = [complete] * num_requests + [replace(request, ended="failed")] * num_failed
    observations += [replace(request, compared="equal")] * num_equal
    observations += [replace(request, compared="different", request_id="req_1")] * num_different
    evidence_add(observations)


def add_better_canary(rollout: Rollout, *, num_requests: int = 400) -> None:
    """Adds evidence that lets the rollout be promoted, unless its rules are stricter than usual."""
    add_evidence(rollout, Side.STABLE, num_requests=num_requests, acceptance_length=2.0)
    add_evidence(rollout, Side.CANDIDATE, num_requests=num_requests, acceptance_length=3.0, num_equal=num_requests)
