"""Adapters as the API shows them, and what a request for one may say."""

from typing import Any

from rest_framework import serializers

from control.core.api.fields import BodyInput
from control.core.api.times import unix
from control.models.adapters.models import Adapter


def adapter_body(adapter: Adapter) -> dict[str, Any]:
    return {
        "id": adapter.pk,
        "object": "adapter",
        "name": adapter.name,
        "model": adapter.base_model.name,
        "rank": adapter.rank,
        "target_modules": adapter.target_modules,
        "bytes": adapter.size_bytes,
        "created_at": unix(adapter.created_at),
    }


class AdapterInput(BodyInput):
    name = serializers.RegexField(r"^[A-Za-z0-9][A-Za-z0-9._-]*\Z", max_length=64)
    model = serializers.CharField(max_length=120)
    config_file = serializers.CharField(max_length=80, help_text="adapter_config.json, as it was uploaded.")
    weights_file = serializers.CharField(max_length=80, help_text="adapter_model.safetensors, as it was uploaded.")
