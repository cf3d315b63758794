"""/v1/spend_caps: what may be spent in a month."""

from rest_framework.request import Request
from rest_framework.response import Response

from control.billing.spending.selectors import spend_cap_get, spend_caps_list
from control.billing.spending.serializers import SpendCapInput, SpendCapUpdateInput, nanousd, spend_cap_body
from control.billing.spending.services import spend_cap_create, spend_cap_delete, spend_cap_update
from control.core.api.paging import paginate
from control.tenants.accounts.scopes import ADMIN
from control.tenants.accounts.selectors import project_get
from control.tenants.authentication.views import OrganizationView


class SpendCapsView(OrganizationView):
    scope = ADMIN

    def get(self, request: Request) -> Response:
        return paginate(spend_caps_list(self.organization), request, spend_cap_body)

    def post(self, request: Request) -> Response:
        """At the cap, jobs are paused and endpoints answer 429, until it is raised or the next month begins."""
        form = SpendCapInput(data=request.data)
        form.is_valid(raise_exception=True)
        values = form.validated_data
        project_id = values["project_id"]
        cap = spend_cap_create(
            organization=self.organization,
            project=None if project_id is None else project_get(self.organization, project_id),
            nanousd=nanousd(values["amount"]),
        )
        return Response(spend_cap_body(cap), status=201)


class SpendCapView(OrganizationView):
    scope = ADMIN

    def get(self, request: Request, cap_id: str) -> Response:
        return Response(spend_cap_body(spend_cap_get(self.organization, cap_id)))

    def patch(self, request: Request, cap_id: str) -> Response:
        """A raised cap lets paused jobs go on where they stopped."""
        cap = spend_cap_get(self.organization, cap_id)
        form = SpendCapUpdateInput(data=request.data)
        form.is_valid(raise_exception=True)
        return Response(spend_cap_body(spend_cap_update(cap=cap, nanousd=nanousd(form.validated_data["amount"]))))

    def delete(self, request: Request, cap_id: str) -> Response:
        spend_cap_delete(cap=spend_cap_get(self.organization, cap_id))
        return Response({"id": cap_id, "object": "spend_cap", "deleted": True})
