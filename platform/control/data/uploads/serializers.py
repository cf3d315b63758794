"""OpenAI's upload and part objects, and what requests may say."""

from typing import Any

from rest_framework import serializers

from control.core.api.fields import BodyInput, Choice
from control.core.api.times import unix
from control.data.files.serializers import UPLOAD_PURPOSES, file_body
from control.data.uploads.models import Upload, UploadPart

MAX_PARTS = 10_000


def upload_body(upload: Upload) -> dict[str, Any]:
    return {
        "id": upload.pk,
        "object": "upload",
        "bytes": upload.size_bytes,
        "created_at": unix(upload.created_at),
        "expires_at": unix(upload.expires_at),
        "filename": upload.filename,
        "purpose": upload.purpose,
        "status": upload.status,
        "file": None if upload.file is None else file_body(upload.file),
    }


def part_body(part: UploadPart) -> dict[str, Any]:
    return {
        "id": part.pk,
        "object": "upload.part",
        "created_at": unix(part.created_at),
        "upload_id": part.upload_id,
        "bytes": part.size_bytes,  # ours: who resumes an upload has to know what is there
    }


class UploadInput(BodyInput):
    bytes = serializers.IntegerField(min_value=1)
    filename = serializers.CharField(max_length=255)
    mime_type = serializers.CharField(max_length=120)
    purpose = Choice(choices=UPLOAD_PURPOSES)
    expires_after = serializers.DictField(allow_null=True, default=None)


class CompleteInput(BodyInput):
    part_ids = serializers.ListField(
        child=serializers.CharField(max_length=80), allow_empty=False, max_length=MAX_PARTS
    )
    md5 = serializers.CharField(max_length=80, allow_null=True, default=None)
