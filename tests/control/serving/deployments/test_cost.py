"""The cost so far of a deployment is the cost of its processes' device time."""

import datetime as dt

from django.core.management import call_command
from django.test import Client
from django.utils import timezone

from control.billing.ledger.models import Subject
from control.billing.usage.device_time import device_time_add
from control.tenants.accounts.models import Organization
from control.tenants.authentication.caller import Caller
from tests.control.factories import client_of, make_base_model
from tests.control.serving.deployments.support import make_deployment


def test_the_cost_of_a_deployment_is_that_of_its_device_time_in_the_ledger(
    client: Client, organization: Organization, other_organization: Organization
) -> None:
    call_command("device_price_set", "cuda", "3")
    model = make_base_model()
    deployment, other = (make_deployment(model, organization, name) for name in ("one", "two"))
    now = timezone.now()
    last_year = now - dt.timedelta(days=366)
    for number, (owner, until) in enumerate([(deployment, now), (deployment, last_year), (other, now)]):
        device_time_add(
            caller=Caller(organization_id=organization.pk),
            subject=Subject.ENDPOINT_TIME,
            object_id=owner.pk,
            sequence=f"1/{number}",
            device_kind="cuda",
            since=until - dt.timedelta(minutes=20),
            until=until,
        )

    cost = client.get(f"/v1/deployments/{deployment.pk}/cost").json()

    assert cost == {
        "object": "deployment.cost",
        "deployment_id": deployment.pk,
        "device_seconds": 2400.0,
        "cost": {"value": 2.0, "currency": "usd"},
        "cost_this_month": {"value": 1.0, "currency": "usd"},
    }
    assert client_of(other_organization).get(f"/v1/deployments/{deployment.pk}/cost").status_code == 404
