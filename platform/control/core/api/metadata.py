"""OpenAI's `metadata`: key-value pairs that a caller attaches to an object."""

from typing import Annotated

from pydantic import AfterValidator, Field
from rest_framework import serializers

from control.core.api.fields import BodyInput

MAX_PAIRS, MAX_KEY, MAX_VALUE = 16, 64, 512


class MetadataInput(BodyInput):
    """The base of request bodies with a `metadata` field."""

    metadata = serializers.DictField(
        child=serializers.CharField(max_length=MAX_VALUE, allow_blank=True, trim_whitespace=False),
        allow_null=True,
        default=None,
    )

    def validate_metadata(self, metadata: dict[str, str] | None) -> dict[str, str] | None:
        if metadata is None:
            return None
        if len(metadata) > MAX_PAIRS:
            raise serializers.ValidationError(f"at most {MAX_PAIRS} pairs, got {len(metadata)}")
        for key in metadata:
            if not 1 <= len(key) <= MAX_KEY or not key.isprintable():
                message = f"a key must have 1 to {MAX_KEY} printable characters, got {key[:80]!a}"
                raise serializers.ValidationError(message)
        return metadata


def _check(metadata: dict[str, str]) -> dict[str, str]:
    if len(metadata) > MAX_PAIRS:
        raise ValueError(f"at most {MAX_PAIRS} pairs, got {len(metadata)}")
    for key in metadata:
        if not 1 <= len(key) <= MAX_KEY or not key.isprintable():
            raise ValueError(f"a key must have 1 to {MAX_KEY} printable characters, got {key[:80]!a}")
    return metadata


Metadata = Annotated[dict[str, Annotated[str, Field(max_length=MAX_VALUE)]], AfterValidator(_check)]
