"""Routes of OpenAI's files."""

from collections.abc import Mapping
from typing import Any

from django.http import HttpRequest
from rest_framework.parsers import MultiPartParser
from rest_framework.request import Request
from rest_framework.response import Response

from control.api.auth import OrganizationView
from control.api.errors import ApiError
from control.api.json_body import StrictJsonParser
from control.api.paging import paginate
from control.files.models import File
from control.files.selectors import file_get, files_list
from control.files.serializers import UploadInput, expires_after, file_body
from control.files.services import file_create, file_delete
from control.files.streaming import StoredFileResponse
from control.files.upload import FILE_FIELD, StagedUpload, StagingUploadHandler
from control.storage import ObjectMissing

PAGE_LIMIT = 10_000  # OpenAI's default and maximum for files


class FilesView(OrganizationView):
    scope = "files"

    parser_classes = [MultiPartParser, StrictJsonParser]

    def initialize_request(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Request:
        self._uploads = StagingUploadHandler(request)
        request.upload_handlers = [self._uploads]
        return super().initialize_request(request, *args, **kwargs)

    def finalize_response(self, request: Request, response: Response, *args: Any, **kwargs: Any) -> Response:
        self._uploads.discard()  # here, because rest_framework calls this after errors too
        return super().finalize_response(request, response, *args, **kwargs)

    def get(self, request: Request) -> Response:
        purpose = request.query_params.get("purpose")
        if purpose is not None and purpose not in File.Purpose.values:
            raise ApiError(
                400, f"purpose must be one of {File.Purpose.values}, got {purpose[:40]!r}", "invalid_value", "purpose"
            )
        files = files_list(self.organization, purpose=purpose)
        return paginate(files, request, file_body, max_limit=PAGE_LIMIT, default_limit=PAGE_LIMIT)

    def post(self, request: Request) -> Response:
        upload = request.FILES.get(FILE_FIELD)
        if not isinstance(upload, StagedUpload):
            raise ApiError(400, "file: send the file as multipart/form-data.", "missing_required_parameter", FILE_FIELD)
        form = UploadInput(data=request.data)
        form.is_valid(raise_exception=True)
        file = file_create(
            organization=self.organization,
            filename=upload.name or "file",
            purpose=form.validated_data["purpose"],
            source=upload.staged,
            expires_after=expires_after(_nested(request, "expires_after")),
        )
        return Response(file_body(file))


def _nested(request: Request, name: str) -> dict[str, Any] | None:
    """{"seconds": "3600"} from the form fields `name[seconds]`; None: there are none."""
    assert isinstance(request.data, Mapping)  # a form: it brought a file along
    found = {
        key[len(name) + 1 : -1]: value
        for key, value in request.data.items()
        if key.startswith(f"{name}[") and key.endswith("]")
    }
    return found or None


class FileView(OrganizationView):
    scope = "files"

    def get(self, request: Request, file_id: str) -> Response:
        return Response(file_body(file_get(self.organization, file_id)))

    def delete(self, request: Request, file_id: str) -> Response:
        file = file_get(self.organization, file_id)
        file_delete(file=file)
        return Response({"id": file.pk, "object": "file", "deleted": True})


class FileContentView(OrganizationView):
    scope = "files"

    def get(self, request: Request, file_id: str) -> StoredFileResponse:
        file = file_get(self.organization, file_id)
        try:
            return StoredFileResponse(
                file.storage_key,
                filename=file.filename,
                size_bytes=file.size_bytes,
                content_type="application/octet-stream",
            )
        except ObjectMissing as error:  # deleted between our look at the row and at the bytes
            raise ApiError(404, f"No such File object: {file_id}", "file_not_found", "file_id") from error
