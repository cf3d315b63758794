"""/v1/distillations: a model answers prompts, and speculators are trained on the answers."""

from rest_framework.request import Request
from rest_framework.response import Response

from control.core.api.operation import PAGING, operation
from control.core.api.paging import paginate
from control.core.api.schemas import Page
from control.models.engines.schemas import EnginePlan
from control.tenants.authentication.views import OrganizationView
from control.workflows.distillations.requests import create_from, plan_from
from control.workflows.distillations.schemas import DistillationInput, DistillationObject
from control.workflows.distillations.selectors import distillation_get, distillations_list
from control.workflows.distillations.services import distillation_cancel


class DistillationsView(OrganizationView):
    scope = "pipelines"

    @operation("distillations.list", response=Page[DistillationObject], query=PAGING)
    def get(self, request: Request) -> Response:
        return paginate(distillations_list(self.organization), request, DistillationObject.of)

    @operation(
        "distillations.create", request=DistillationInput, response=DistillationObject, status=201, plan=EnginePlan
    )
    def post(self, request: Request, body: DistillationInput) -> DistillationObject | EnginePlan:
        """Several pipelines can train on one distillation: pass its id to them as `distillation_id`."""
        if body.validate_only:
            return plan_from(self.organization, body)
        made = create_from(self.organization, body)
        return DistillationObject.of(distillation_get(self.organization, made.pk))


class DistillationView(OrganizationView):
    scope = "pipelines"

    @operation("distillations.retrieve", response=DistillationObject)
    def get(self, request: Request, distillation_id: str) -> DistillationObject:
        return DistillationObject.of(distillation_get(self.organization, distillation_id))


class DistillationCancelView(OrganizationView):
    scope = "pipelines"

    @operation("distillations.cancel", response=DistillationObject)
    def post(self, request: Request, distillation_id: str) -> DistillationObject:
        distillation_cancel(distillation=distillation_get(self.organization, distillation_id))
        return DistillationObject.of(distillation_get(self.organization, distillation_id))
