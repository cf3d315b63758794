"""/v1/adapters: LoRA adapters that deployments can serve."""

from rest_framework.request import Request
from rest_framework.response import Response

from control.core.api.operation import PAGING, operation
from control.core.api.paging import paginate
from control.core.api.schemas import Deleted, Page
from control.models.adapters.requests import create_from
from control.models.adapters.schemas import AdapterInput, AdapterObject
from control.models.adapters.selectors import adapter_get, adapters_list
from control.models.adapters.services import adapter_delete
from control.tenants.authentication.views import OrganizationView


class AdaptersView(OrganizationView):
    scope = "models"

    @operation("adapters.list", response=Page[AdapterObject], query=PAGING)
    def get(self, request: Request) -> Response:
        return paginate(adapters_list(self.organization), request, AdapterObject.of)

    @operation("adapters.create", request=AdapterInput, response=AdapterObject, status=201)
    def post(self, request: Request, body: AdapterInput) -> AdapterObject:
        """Checks the two uploaded files and creates the adapter from copies of them."""
        return AdapterObject.of(create_from(self.organization, body))


class AdapterView(OrganizationView):
    scope = "models"

    @operation("adapters.retrieve", response=AdapterObject)
    def get(self, request: Request, adapter_id: str) -> AdapterObject:
        return AdapterObject.of(adapter_get(self.organization, adapter_id))

    @operation("adapters.delete", response=Deleted)
    def delete(self, request: Request, adapter_id: str) -> Deleted:
        adapter_delete(adapter=adapter_get(self.organization, adapter_id))
        return Deleted(id=adapter_id, object="adapter")
