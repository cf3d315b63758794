"""/v1/spend_caps: limits on the amount spent in a month."""

from rest_framework.request import Request
from rest_framework.response import Response

from control.billing.spending.schemas import SpendCapInput, SpendCapObject, SpendCapUpdateInput, nanousd
from control.billing.spending.selectors import spend_cap_get, spend_caps_list
from control.billing.spending.services import spend_cap_create, spend_cap_delete, spend_cap_update
from control.core.api.operation import PAGING, operation
from control.core.api.paging import paginate
from control.core.api.schemas import Deleted, Page
from control.tenants.accounts.selectors import project_get
from control.tenants.authentication.views import OrganizationView


class SpendCapsView(OrganizationView):
    scope = "spend_caps"

    @operation("spend_caps.list", response=Page[SpendCapObject], query=PAGING)
    def get(self, request: Request) -> Response:
        return paginate(spend_caps_list(self.organization), request, SpendCapObject.of)

    @operation("spend_caps.create", request=SpendCapInput, response=SpendCapObject, status=201)
    def post(self, request: Request, body: SpendCapInput) -> SpendCapObject:
        """When a cap is reached, jobs are paused and endpoints respond with 429, until the cap is raised or deleted, or
        until the next month begins.
        """
        cap = spend_cap_create(
            organization=self.organization,
            project=self.key.project if body.project_id is None else project_get(self.organization, body.project_id),
            nanousd=nanousd(body.amount),
        )
        return SpendCapObject.of(cap)


class SpendCapView(OrganizationView):
    scope = "spend_caps"

    @operation("spend_caps.retrieve", response=SpendCapObject)
    def get(self, request: Request, cap_id: str) -> SpendCapObject:
        return SpendCapObject.of(spend_cap_get(self.organization, cap_id))

    @operation("spend_caps.update", request=SpendCapUpdateInput, response=SpendCapObject)
    def patch(self, request: Request, cap_id: str, body: SpendCapUpdateInput) -> SpendCapObject:
        """A raised cap lets paused jobs continue where they stopped."""
        cap = spend_cap_get(self.organization, cap_id)
        return SpendCapObject.of(spend_cap_update(cap=cap, nanousd=nanousd(body.amount)))

    @operation("spend_caps.delete", response=Deleted)
    def delete(self, request: Request, cap_id: str) -> Deleted:
        spend_cap_delete(cap=spend_cap_get(self.organization, cap_id))
        return Deleted(id=cap_id, object="spend_cap")
