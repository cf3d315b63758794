"""OpenAI's model object, and our speculator."""

from typing import Any

from rest_framework import serializers

from control.core.api.fields import BodyInput
from control.core.api.times import unix
from control.models.catalog.models import BaseModel

SHARED_OWNER = "slipstream"


def registered_model_body(model: BaseModel) -> dict[str, Any]:
    """Ours: what speculators are bound to."""
    return {
        "id": model.pk,
        "object": "base_model",
        "name": model.name,
        "status": model.status,
        "error": model.error,
        "source": model.source or None,
        "model_type": model.model_type or None,
        "revision": model.revision or None,
        "is_shared": model.organization_id is None,
        "created_at": unix(model.created_at),
    }


class BaseModelInput(BodyInput):
    name = serializers.RegexField(r"^[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)?\Z", max_length=120)
    source = serializers.CharField(  # type: ignore[assignment]  # a field has an attribute of this name
        max_length=1000, help_text="A folder, or s3://bucket/prefix, that operators allow."
    )
