"""Builds an object with the rules, gates, evidence and verdict of a rollout's trial, or of the time after promotion.

Once there is a verdict, the object also contains a certificate, which signs all other members.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from django.utils import timezone

from control.core.certificates import ROLLOUT_FORMAT, certificate_of
from control.serving.rollouts.decision import Decision, Evidence, Gate, Terms
from control.serving.rollouts.models import Rollout


def verdict_of(
    rollout: Rollout,
    *,
    phase: str,
    candidate: Evidence,
    stable: Evidence,
    gates: Sequence[Gate],
    decision: Decision,
) -> dict[str, Any]:
    """Args: phase: `trial` or `watch`."""
    verdict: dict[str, Any] = {
        "rules": {
            **asdict(Terms.of(rollout)),
            "mode": rollout.mode,
            "share_percent": rollout.share_percent,
            "max_seconds": rollout.max_seconds,
            "watch_seconds": rollout.watch_seconds,
        },
        "gates": [gate.as_json() for gate in gates],
        "evidence": {"candidate": candidate.as_json(), "stable": stable.as_json()},
        "verdict": {"decision": decision.kind, "code": decision.code, "message": decision.message},
        "certificate": None,
    }
    if decision.kind != "undecided":
        verdict["certificate"] = certificate_of(_statement(rollout, phase, verdict), kind=ROLLOUT_FORMAT)
    return verdict


def _statement(rollout: Rollout, phase: str, verdict: Mapping[str, Any]) -> dict[str, Any]:
    facts = {name: value for name, value in verdict.items() if name != "certificate"}
    return {
        "rollout_id": rollout.pk,
        "organization_id": rollout.organization_id,
        "deployment_id": rollout.deployment_id,
        "speculator_id": rollout.speculator_id,
        "previous_speculator_id": rollout.previous_id,
        "phase": phase,
        "issued_at": int(timezone.now().timestamp()),
        **_without_fractions(facts),
    }


def _without_fractions(value: Any) -> Any:
    """Replaces fractions by decimal strings, because a certificate must not have fractions."""
    if isinstance(value, float):
        return f"{value:.9g}"
    if isinstance(value, Mapping):
        return {name: _without_fractions(member) for name, member in value.items()}
    if isinstance(value, list):
        return [_without_fractions(member) for member in value]
    return value
