"""Requests and responses of thresholds of spending."""

from typing import Annotated, Any, Literal, Self

from pydantic import Field

from control.billing.spending.schemas import Dollars
from control.billing.spending.selectors import month_start, spent_this_month
from control.billing.thresholds.models import Threshold
from control.billing.thresholds.selectors import thresholds_of
from control.billing.thresholds.services import MAX_THRESHOLDS
from control.billing.usage.schemas import Amount
from control.core.api.schemas import IntRange, RequestModel, ResponseModel, Text, Unix
from control.tenants.accounts.models import Organization, Project


class ThresholdInput(RequestModel):
    """A threshold, as either an amount or a percentage. Exactly one of the two members must be given."""

    amount: Dollars | None = Field(default=None, description="US dollars per calendar month (UTC).")
    percent_of_cap: Annotated[int, IntRange(1, 100)] | None = Field(
        default=None, description="Percent of the spend cap of the organization or project."
    )


class ThresholdsInput(RequestModel):
    thresholds: Annotated[list[ThresholdInput], Field(max_length=MAX_THRESHOLDS)] = Field(
        description="All thresholds from now on. An empty list removes all thresholds."
    )
    project_id: Annotated[str, Text(40)] | None = Field(
        default=None, description="Null for the thresholds of the whole organization."
    )


class ThresholdObject(ResponseModel):
    id: str
    object: Literal["spending_threshold"] = "spending_threshold"
    amount: Amount | None
    percent_of_cap: int | None
    reached_at: Unix | None = Field(
        description="When the threshold was reported this month. Null if it was not reported this month."
    )

    @classmethod
    def of(cls, threshold: Any) -> Self:
        """Args: threshold: a threshold that `thresholds_of` has returned."""
        is_amount = threshold.unit == Threshold.Unit.NANOUSD
        return cls.from_row(
            threshold,
            amount=Amount.of(threshold.value) if is_amount else None,
            percent_of_cap=None if is_amount else threshold.value,
        )


class ThresholdsObject(ResponseModel):
    id: str = Field(description="The id of the organization or project to which the thresholds apply.")
    object: Literal["spending_thresholds"] = "spending_thresholds"
    project_id: str | None = Field(description="Null for the thresholds of the whole organization.")
    spent: Amount = Field(description="The amount spent so far this month.")
    month_start: Unix
    thresholds: list[ThresholdObject]

    @classmethod
    def of(cls, organization: Organization, project: Project | None) -> Self:
        project_id = None if project is None else project.pk
        return cls(
            id=project_id or organization.pk,
            project_id=project_id,
            spent=Amount.of(spent_this_month(organization.pk, project_id)),
            month_start=month_start(),  # type: ignore[arg-type]  # `Unix` converts it
            thresholds=[ThresholdObject.of(row) for row in thresholds_of(organization, project)],
        )
