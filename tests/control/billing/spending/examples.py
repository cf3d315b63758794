"""Example objects and request bodies of spending, for the tests that cover all routes."""

from control.billing.spending.models import SpendCap
from control.billing.spending.services import spend_cap_create
from tests.control.world import Bodies, Body, Ids, World


def spend_cap(world: World) -> SpendCap:
    """Returns a project's cap, because a generated test creates the only cap that the organization itself can have."""
    return spend_cap_create(organization=world.organization, project=world.project, nanousd=10**15)


IDS: Ids = {
    "cap_id": lambda world: world.spend_cap.pk,
}
BODIES: Bodies = {
    "POST /v1/spend_caps": Body(lambda world: {"amount": 1_000_000}, {"project_id": "project_id"}),
    "PATCH /v1/spend_caps/{cap_id}": Body(lambda world: {"amount": 2_000_000}),
}
