"""Bodies that are multipart forms."""

from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from control.data.files.serializers import UploadInput


@extend_schema_field(OpenApiTypes.BINARY)
class FormFile(serializers.FileField):
    """The generator would take a file for the address of one, as it is in answers."""


class FileForm(UploadInput):
    file = FormFile()
    expires_after = serializers.DictField(required=False, help_text="Flat: `expires_after[anchor]`, `[seconds]`.")


class PartForm(serializers.Serializer[dict[str, object]]):
    data = FormFile()  # type: ignore[assignment]  # OpenAI's name for it
