"""The deployment object, and what a request may say about one."""

from typing import Any

from rest_framework import serializers

from control.api.fields import BodyInput
from control.api.times import unix
from control.deployments.models import Deployment


def deployment_json(deployment: Deployment) -> dict[str, Any]:
    """Only what concerns the customer: pid, port and token stay inside."""
    return {
        "id": deployment.pk,
        "object": "deployment",
        "name": deployment.name,
        "model": deployment.base_model.name,
        "speculator_id": deployment.speculator_id,
        "desired_state": deployment.desired_state,
        "state": deployment.state,
        "error": deployment.error,
        "created_at": unix(deployment.created_at),
        "healthy_at": unix(deployment.healthy_at),
    }


class DeploymentInput(BodyInput):
    name = serializers.CharField(max_length=64)
    model = serializers.CharField(max_length=120)
    speculator_id = serializers.CharField(max_length=40, required=False, allow_null=True, default=None)


class DeploymentUpdateInput(BodyInput):
    speculator_id = serializers.CharField(max_length=40, allow_null=True)
