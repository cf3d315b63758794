"""/v1/spending_thresholds: amounts at which members and webhooks are told what was spent in the month."""

from rest_framework.request import Request

from control.billing.thresholds.requests import set_from
from control.billing.thresholds.schemas import ThresholdsInput, ThresholdsObject
from control.core.api.operation import operation
from control.tenants.accounts.models import Project
from control.tenants.accounts.selectors import project_get
from control.tenants.authentication.views import OrganizationView


class ThresholdsView(OrganizationView):
    scope = "spend_caps"

    @operation(
        "spending_thresholds.retrieve",
        response=ThresholdsObject,
        query={"project_id": "The thresholds of this project. The default is the whole organization."},
    )
    def get(self, request: Request) -> ThresholdsObject:
        """Returns the thresholds of the organization, or of a project. A project's key gets those of the project."""
        return ThresholdsObject.of(self.organization, self._project(request.query_params.get("project_id")))

    @operation(
        "spending_thresholds.set",
        summary="Replace the spending thresholds",
        request=ThresholdsInput,
        response=ThresholdsObject,
    )
    def put(self, request: Request, body: ThresholdsInput) -> ThresholdsObject:
        """When the spending of a month reaches a threshold, this is reported once in the month: by an event
        `spending.threshold_reached`, its webhooks, and a mail to the owners and billing members. A percentage refers
        to the spend cap; without a cap, it is never reached.
        """
        project = self._project(body.project_id)
        set_from(self.organization, project, body)
        return ThresholdsObject.of(self.organization, project)

    def _project(self, project_id: str | None) -> Project | None:
        return self.key.project if project_id is None else project_get(self.organization, project_id)
