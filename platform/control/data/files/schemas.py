"""Requests and responses of files: OpenAI's file object."""

import datetime as dt
from typing import Annotated, Literal, Self

from django.core.files.uploadedfile import UploadedFile
from pydantic import Field, InstanceOf, WithJsonSchema

from control.core.api.schemas import BINARY_FIELD, IntRange, OneOf, RequestModel, ResponseModel, Unix
from control.data.files.models import File

UPLOAD_PURPOSES = (
    File.Purpose.ASSISTANTS,
    File.Purpose.BATCH,
    File.Purpose.FINE_TUNE,
    File.Purpose.VISION,
    File.Purpose.USER_DATA,
    File.Purpose.EVALS,
)
MIN_EXPIRY_SECONDS, MAX_EXPIRY_SECONDS = 3600, 30 * 24 * 3600


class ExpiresAfter(RequestModel, extra="ignore"):
    anchor: Annotated[str, OneOf(["created_at"])]
    seconds: Annotated[int, IntRange(MIN_EXPIRY_SECONDS, MAX_EXPIRY_SECONDS)]

    @property
    def delta(self) -> dt.timedelta:
        return dt.timedelta(seconds=self.seconds)


class FileForm(RequestModel, extra="ignore"):
    """A multipart form. Its fields cannot be nested, so each member of `expires_after` is a field of its own."""

    purpose: Annotated[str, OneOf(UPLOAD_PURPOSES)]
    file: Annotated[InstanceOf[UploadedFile], BINARY_FIELD]  # type: ignore[type-arg]  # generic in its stubs only
    expires_after: Annotated[
        ExpiresAfter | None,
        Field(description="Sent as the fields `expires_after[anchor]` and `expires_after[seconds]`."),
        WithJsonSchema({"type": "object", "additionalProperties": {}}),
    ] = None


class FileObject(ResponseModel):
    id: str
    object: Literal["file"] = "file"
    bytes: int
    created_at: Unix
    expires_at: Unix | None
    filename: str
    purpose: str
    status: str
    status_details: str | None

    @classmethod
    def of(cls, file: File) -> Self:
        return cls.from_row(file, bytes=file.size_bytes, status_details=None)
