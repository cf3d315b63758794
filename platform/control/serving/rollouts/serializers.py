"""Rollouts as the API shows them, and what a request for one may say."""

from typing import Any

from rest_framework import serializers

from control.core.api.fields import BodyInput
from control.core.api.times import unix
from control.serving.rollouts.models import Rollout


def rollout_body(rollout: Rollout) -> dict[str, Any]:
    return {
        "id": rollout.pk,
        "object": "deployment.rollout",
        "deployment_id": rollout.deployment_id,
        "speculator_id": rollout.speculator_id,
        "previous_speculator_id": rollout.previous_id,
        "status": rollout.status,
        "share_percent": rollout.share_percent,
        "min_requests": rollout.min_requests,
        "max_acceptance_drop": rollout.max_acceptance_drop,
        "max_error_rate": rollout.max_error_rate,
        "max_seconds": rollout.max_seconds,
        "reason": rollout.reason,
        "figures": rollout.figures or None,
        "created_at": unix(rollout.created_at),
        "started_at": unix(rollout.started_at),
        "finished_at": unix(rollout.finished_at),
    }


class RolloutInput(BodyInput):
    speculator_id = serializers.CharField(max_length=40)
    share_percent = serializers.IntegerField(min_value=1, max_value=50, default=10)
    min_requests = serializers.IntegerField(min_value=1, max_value=1_000_000, default=100)
    max_acceptance_drop = serializers.FloatField(min_value=0, max_value=1, default=0.05)
    max_error_rate = serializers.FloatField(min_value=0, max_value=1, default=0.01)
    max_seconds = serializers.IntegerField(min_value=60, max_value=7 * 86400, default=86400)
