"""/v1/distillations: let your model answer prompts, for speculators to learn from."""

from rest_framework.request import Request
from rest_framework.response import Response

from control.core.api.paging import paginate
from control.data.files.selectors import file_get
from control.models.catalog.selectors import base_model_get
from control.tenants.authentication.views import OrganizationView
from control.workflows.distillations.selectors import distillation_get, distillations_list
from control.workflows.distillations.serializers import DistillationInput, distillation_body
from control.workflows.distillations.services import distillation_cancel, distillation_create
from control.workflows.quotes.selectors import quote_get


class DistillationsView(OrganizationView):
    scope = "pipelines"

    def get(self, request: Request) -> Response:
        return paginate(distillations_list(self.organization), request, distillation_body)

    def post(self, request: Request) -> Response:
        """One distillation can train many speculators: name it in pipelines as `distillation_id`."""
        form = DistillationInput(data=request.data)
        form.is_valid(raise_exception=True)
        values = form.validated_data
        distillation = distillation_create(
            organization=self.organization,
            base_model=base_model_get(self.organization, values["model"]),
            prompts_file=file_get(self.organization, values["prompts_file"], param="prompts_file"),
            quote=values["quote_id"] and quote_get(self.organization, values["quote_id"]),
            metadata=values["metadata"],
        )
        return Response(distillation_body(distillation_get(self.organization, distillation.pk)), status=201)


class DistillationView(OrganizationView):
    scope = "pipelines"

    def get(self, request: Request, distillation_id: str) -> Response:
        return Response(distillation_body(distillation_get(self.organization, distillation_id)))


class DistillationCancelView(OrganizationView):
    scope = "pipelines"

    def post(self, request: Request, distillation_id: str) -> Response:
        distillation_cancel(distillation=distillation_get(self.organization, distillation_id))
        return Response(distillation_body(distillation_get(self.organization, distillation_id)))
