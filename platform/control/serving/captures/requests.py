"""Handles API and console requests that switch on a capture. A capture stores a sample of a deployment's requests."""

from control.core.api.forms import ConsoleForm
from control.serving.captures.models import Capture
from control.serving.captures.schemas import CaptureInput
from control.serving.captures.services import capture_set
from control.serving.deployments.models import Deployment
from control.serving.deployments.selectors import deployment_get


def create_from(deployment: Deployment, body: CaptureInput) -> Capture:
    return capture_set(
        deployment=deployment,
        hours=body.hours,
        sample_percent=body.sample_percent,
        redact=body.redact,
        redact_patterns=body.redact_patterns,
    )


SET_CAPTURE = ConsoleForm(
    title="Capture",
    request=CaptureInput,
    run=lambda row, body: create_from(deployment_get(row.organization, row.pk), body),
)
