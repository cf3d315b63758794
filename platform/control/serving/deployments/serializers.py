"""The deployment object, and what a request may say about one."""

import datetime as dt
from typing import Any

from rest_framework import serializers

from control.core.api.fields import BodyInput
from control.core.api.times import unix
from control.serving.deployments.figures import Stretch
from control.serving.deployments.models import Deployment

MAX_ADAPTERS = 32


def deployment_json(deployment: Deployment) -> dict[str, Any]:
    """Only what concerns the customer: pid, port and token stay inside."""
    return {
        "id": deployment.pk,
        "object": "deployment",
        "name": deployment.name,
        "model": deployment.base_model.name,
        "speculator_id": deployment.speculator_id,
        "adapters": [
            {"id": adapter.pk, "name": adapter.name, "model": f"{deployment.name}:{adapter.name}"}
            for adapter in deployment.adapters.all()
        ],
        "desired_state": deployment.desired_state,
        "state": deployment.state,
        "error": deployment.error,
        "created_at": unix(deployment.created_at),
        "healthy_at": unix(deployment.healthy_at),
    }


def metrics_body(start: dt.datetime, stretch: Stretch, *, seconds: int) -> dict[str, Any]:
    return {
        "object": "deployment.metrics",
        "start_time": int(start.timestamp()),
        "end_time": int(start.timestamp()) + seconds,
        "num_requests": stretch.num_requests,
        "prompt_tokens": round(stretch.counts["prompt_tokens"]),
        "generation_tokens": round(stretch.counts["generation_tokens"]),
        "tokens_per_second": stretch.tokens_per_second,
        "acceptance_length": stretch.acceptance_length,
        "acceptance_rate": stretch.acceptance_rate,
        "latency_seconds": stretch.latency_seconds,
        "time_to_first_token_seconds": stretch.first_token_seconds,
    }


class DeploymentInput(BodyInput):
    name = serializers.CharField(max_length=64)
    model = serializers.CharField(max_length=120)
    speculator_id = serializers.CharField(max_length=40, required=False, allow_null=True, default=None)
    adapters = serializers.ListField(
        child=serializers.CharField(max_length=40), max_length=MAX_ADAPTERS, default=list, help_text="Ids."
    )


class DeploymentUpdateInput(BodyInput):
    """Of what is left out, nothing changes."""

    speculator_id = serializers.CharField(max_length=40, allow_null=True, required=False)
    adapters = serializers.ListField(
        child=serializers.CharField(max_length=40), max_length=MAX_ADAPTERS, required=False, help_text="Ids of all."
    )

    def validate(self, values: dict[str, Any]) -> dict[str, Any]:
        if not values:
            raise serializers.ValidationError({"speculator_id": "give speculator_id, adapters or both"}, "required")
        return values
