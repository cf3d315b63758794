"""/v1/adapters: LoRA adapters that deployments can serve."""

from rest_framework.request import Request
from rest_framework.response import Response

from control.core.api.errors import ApiError
from control.core.api.operation import BINARY, PAGING, operation
from control.core.api.paging import paginate
from control.core.api.schemas import Deleted, Page
from control.core.storage.backends import ObjectMissing
from control.data.files.streaming import StoredFileResponse
from control.models.adapters.requests import create_from
from control.models.adapters.schemas import AdapterInput, AdapterObject
from control.models.adapters.selectors import adapter_get, adapters_list
from control.models.adapters.services import CONFIG, WEIGHTS, adapter_delete
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


class AdapterContentView(OrganizationView):
    scope = "models"

    @operation(
        "adapters.content",
        summary="Download a file of an adapter",
        response=BINARY,
        query={"name": f"`{CONFIG}` or `{WEIGHTS}`, which is the default."},
    )
    def get(self, request: Request, adapter_id: str) -> StoredFileResponse:
        """Returns one of the two files of an adapter. peft and other engines load a folder with both files."""
        adapter = adapter_get(self.organization, adapter_id)
        name = request.query_params.get("name", WEIGHTS)
        if name not in (CONFIG, WEIGHTS):
            raise ApiError(400, f"name must be {CONFIG} or {WEIGHTS}, got {name[:40]!a}", "invalid_value", "name")
        size_bytes = adapter.size_bytes if name == WEIGHTS else None
        try:
            return StoredFileResponse(
                f"{adapter.storage_prefix}/{name}", filename=name, content_type=BINARY, size_bytes=size_bytes
            )
        except ObjectMissing as error:  # deleted since the row was read
            raise ApiError(404, f"No such adapter: {adapter_id[:80]!r}.", "adapter_not_found", "adapter_id") from error
