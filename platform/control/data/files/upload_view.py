"""The base class of views that accept a file in a multipart form."""

from collections.abc import Mapping
from typing import Any, ClassVar

from django.http import HttpRequest, QueryDict
from rest_framework.parsers import MultiPartParser
from rest_framework.request import Request
from rest_framework.response import Response

from control.core.api.errors import ApiError
from control.core.api.json_body import StrictJsonParser
from control.core.storage.upload import StagedUpload, StagingUploadHandler
from control.tenants.authentication.views import OrganizationView


class UploadView(OrganizationView):
    """The staged file is deleted when the request ends, even after an error."""

    parser_classes = [MultiPartParser, StrictJsonParser]
    file_field: ClassVar[str] = "file"

    def max_file_bytes(self) -> int:
        raise NotImplementedError

    def initialize_request(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Request:
        self._uploads = StagingUploadHandler(request, field=self.file_field, limit_bytes=self.max_file_bytes())
        request.upload_handlers = [self._uploads]
        return super().initialize_request(request, *args, **kwargs)

    def finalize_response(self, request: Request, response: Response, *args: Any, **kwargs: Any) -> Response:
        self._uploads.discard()  # rest_framework calls this method after errors, too
        return super().finalize_response(request, response, *args, **kwargs)

    def request_body(self, request: Request) -> dict[str, Any]:
        """Returns the form's fields. Raises: ApiError: 400, the form contains no file."""
        if not isinstance(request.FILES.get(self.file_field), StagedUpload):
            message = f"{self.file_field}: send the file as multipart/form-data."
            raise ApiError(400, message, "missing_required_parameter", self.file_field)
        form = request.data
        assert isinstance(form, QueryDict)  # a body with a file is a form
        return {**form.dict(), "expires_after": nested(form, "expires_after")}


def nested(form: Mapping[str, Any], name: str) -> dict[str, Any] | None:
    """Collects the fields `name[key]` of a form or a query into {"key": value}. Returns None if there are none."""
    members = {
        key[len(name) + 1 : -1]: value
        for key, value in form.items()
        if key.startswith(f"{name}[") and key.endswith("]")
    }
    return members or None
