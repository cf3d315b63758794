"""The cost so far of a deployment, from the ledger."""

from typing import Literal, Self

from django.utils import timezone
from pydantic import Field

from control.billing.ledger.months import month_of
from control.billing.ledger.selectors import endpoint_time
from control.billing.usage.schemas import Amount
from control.core.api.schemas import ResponseModel
from control.serving.deployments.models import Deployment


class DeploymentCost(ResponseModel):
    object: Literal["deployment.cost"] = "deployment.cost"
    deployment_id: str
    device_seconds: float = Field(
        description="The time of all processes of the endpoint, recorded every minute. The time in which they sleep is "
        "not counted."
    )
    cost: Amount = Field(description="The cost of `device_seconds`.")
    cost_this_month: Amount = Field(description="The part of `cost` for the time in this calendar month (UTC).")

    @classmethod
    def of(cls, deployment: Deployment) -> Self:
        used = endpoint_time(deployment.pk, month=month_of(timezone.now()))
        return cls(
            deployment_id=deployment.pk,
            device_seconds=used.milliseconds / 1000,
            cost=Amount.of(used.nanousd),
            cost_this_month=Amount.of(used.nanousd_this_month),
        )
