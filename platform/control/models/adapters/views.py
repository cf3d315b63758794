"""/v1/adapters: LoRA adapters for deployments to serve."""

from rest_framework.request import Request
from rest_framework.response import Response

from control.core.api.paging import paginate
from control.data.files.selectors import file_get
from control.models.adapters.selectors import adapter_get, adapters_list
from control.models.adapters.serializers import AdapterInput, adapter_body
from control.models.adapters.services import adapter_create, adapter_delete
from control.models.catalog.selectors import base_model_get
from control.tenants.authentication.views import OrganizationView


class AdaptersView(OrganizationView):
    scope = "models"

    def get(self, request: Request) -> Response:
        return paginate(adapters_list(self.organization), request, adapter_body)

    def post(self, request: Request) -> Response:
        """From two uploaded files, which are checked and copied."""
        form = AdapterInput(data=request.data)
        form.is_valid(raise_exception=True)
        values = form.validated_data
        adapter = adapter_create(
            organization=self.organization,
            name=values["name"],
            base_model=base_model_get(self.organization, values["model"]),
            config_file=file_get(self.organization, values["config_file"], param="config_file"),
            weights_file=file_get(self.organization, values["weights_file"], param="weights_file"),
        )
        return Response(adapter_body(adapter), status=201)


class AdapterView(OrganizationView):
    scope = "models"

    def get(self, request: Request, adapter_id: str) -> Response:
        return Response(adapter_body(adapter_get(self.organization, adapter_id)))

    def delete(self, request: Request, adapter_id: str) -> Response:
        adapter_delete(adapter=adapter_get(self.organization, adapter_id))
        return Response({"id": adapter_id, "object": "adapter", "deleted": True})
