"""Carries out requests for rollouts that come from the API or the console."""

from control.core.api.forms import ConsoleForm
from control.models.base_speculators.choices import ready_speculators
from control.models.base_speculators.services import speculator_resolve
from control.serving.deployments.models import Deployment
from control.serving.deployments.selectors import deployment_get
from control.serving.rollouts.decision import Terms
from control.serving.rollouts.models import Rollout
from control.serving.rollouts.schemas import RolloutInput
from control.serving.rollouts.services import rollout_create


def create_from(deployment: Deployment, body: RolloutInput) -> Rollout:
    """Raises: ApiError: 404, no such speculator; otherwise as `rollout_create`."""
    return rollout_create(
        deployment=deployment,
        speculator=speculator_resolve(deployment.organization, body.speculator_id),
        share_percent=body.share_percent,
        terms=Terms.of(body),
        max_seconds=body.max_seconds,
        allow_output_change=body.allow_output_change,
        mode=body.mode,
        watch_seconds=body.watch_seconds,
    )


ROLL_OUT = ConsoleForm(
    title="Roll out",
    request=RolloutInput,
    run=lambda row, body: create_from(deployment_get(row.organization, row.pk), body),
    choices=lambda organization: {"speculator_id": ready_speculators(organization)},
)
