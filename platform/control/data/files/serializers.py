"""OpenAI's file object, and what an upload may say."""

import datetime as dt
from typing import Any

from rest_framework import serializers

from control.core.api.fields import Choice
from control.core.api.times import unix
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


def file_body(file: File) -> dict[str, Any]:
    return {
        "id": file.pk,
        "object": "file",
        "bytes": file.size_bytes,
        "created_at": unix(file.created_at),
        "expires_at": unix(file.expires_at),
        "filename": file.filename,
        "purpose": file.purpose,
        "status": file.status,
        "status_details": None,
    }


class ExpiresAfterInput(serializers.Serializer[dict[str, Any]]):
    anchor = Choice(choices=["created_at"])
    seconds = serializers.IntegerField(min_value=MIN_EXPIRY_SECONDS, max_value=MAX_EXPIRY_SECONDS)


class UploadInput(serializers.Serializer[dict[str, Any]]):
    """A nested `expires_after` arrives flat in multipart: `expires_after[seconds]`."""

    purpose = Choice(choices=UPLOAD_PURPOSES)


def expires_after(data: dict[str, Any] | None, *, param: str = "expires_after") -> dt.timedelta | None:
    """OpenAI's {"anchor": "created_at", "seconds": n}. Raises: rest_framework's ValidationError."""
    if data is None:
        return None
    checked = ExpiresAfterInput(data=data)
    if not checked.is_valid():
        raise serializers.ValidationError({param: checked.errors})
    return dt.timedelta(seconds=checked.validated_data["seconds"])
