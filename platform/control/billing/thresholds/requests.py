"""Handles requests that replace the thresholds of an organization or project."""

from control.billing.spending.schemas import nanousd
from control.billing.thresholds.models import Threshold
from control.billing.thresholds.schemas import ThresholdInput, ThresholdsInput
from control.billing.thresholds.services import thresholds_set
from control.core.api.errors import ApiError
from control.tenants.accounts.models import Organization, Project


def set_from(organization: Organization, project: Project | None, body: ThresholdsInput) -> None:
    """Raises: ApiError: 400, a threshold has neither or both of `amount` and `percent_of_cap`, or two are the same."""
    values = [_value(threshold, place) for place, threshold in enumerate(body.thresholds)]
    if len(set(values)) < len(values):
        raise ApiError(400, "thresholds: Two of the thresholds are the same.", "invalid_value", "thresholds")
    thresholds_set(organization=organization, project=project, values=values)


def _value(threshold: ThresholdInput, place: int) -> tuple[Threshold.Unit, int]:
    if (threshold.amount is None) == (threshold.percent_of_cap is None):
        message = f"thresholds.{place}: Give either amount or percent_of_cap."
        raise ApiError(400, message, "invalid_value", f"thresholds.{place}")
    if threshold.amount is not None:
        return Threshold.Unit.NANOUSD, nanousd(threshold.amount)
    assert threshold.percent_of_cap is not None
    return Threshold.Unit.PERCENT, threshold.percent_of_cap
