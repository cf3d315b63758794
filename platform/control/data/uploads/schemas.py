"""Requests and responses of uploads: OpenAI's upload and part objects."""

from typing import Annotated, Literal, Self

from pydantic import Field, InstanceOf, WithJsonSchema

from control.core.api.schemas import BINARY_FIELD, NOT_EMPTY, IntRange, OneOf, RequestModel, ResponseModel, Text, Unix
from control.core.storage.upload import StagedUpload
from control.data.files.schemas import UPLOAD_PURPOSES, ExpiresAfter, FileObject
from control.data.uploads.models import Upload, UploadPart

MAX_PARTS = 10_000


class UploadInput(RequestModel):
    bytes: Annotated[int, IntRange(1)]
    filename: Annotated[str, Text(255)]
    mime_type: Annotated[str, Text(120)]
    purpose: Annotated[str, OneOf(UPLOAD_PURPOSES)]
    expires_after: Annotated[
        ExpiresAfter | None, WithJsonSchema({"type": ["object", "null"], "additionalProperties": {}})
    ] = None


class PartForm(RequestModel, extra="ignore"):
    data: Annotated[InstanceOf[StagedUpload], BINARY_FIELD]


class CompleteInput(RequestModel):
    part_ids: Annotated[list[Annotated[str, Text(80)]], Field(max_length=MAX_PARTS), NOT_EMPTY]
    md5: Annotated[str, Text(80)] | None = None


class UploadObject(ResponseModel):
    id: str
    object: Literal["upload"] = "upload"
    bytes: int
    created_at: Unix
    expires_at: Unix
    filename: str
    purpose: str
    status: Annotated[str, OneOf(Upload.Status)]
    file: FileObject | None

    @classmethod
    def of(cls, upload: Upload) -> Self:
        file = None if upload.file is None else FileObject.of(upload.file)
        return cls.from_row(upload, bytes=upload.size_bytes, file=file)


class UploadPartObject(ResponseModel):
    id: str
    object: Literal["upload.part"] = "upload.part"
    created_at: Unix
    upload_id: str
    bytes: int = Field(description="Our addition: the size of the part, which a client needs to resume an upload.")

    @classmethod
    def of(cls, part: UploadPart) -> Self:
        return cls.from_row(part, bytes=part.size_bytes)
