"""The check of what came back from forms whose requests are serializers still."""

from typing import Any, cast

from rest_framework.serializers import Serializer

from control.core.api.forms import name_choices as same
from control.core.api.forms import row_choices as ids
from control.data.files.choices import prompt_files as prompts
from control.models.catalog.choices import base_models as models
from control.models.catalog.choices import ready_speculators as ready

__all__ = ["checked", "ids", "models", "prompts", "ready", "same"]


def checked(contract: type[Serializer[dict[str, Any]]], body: dict[str, Any]) -> dict[str, Any]:
    form = contract(data=body)
    form.is_valid(raise_exception=True)
    return cast(dict[str, Any], form.validated_data)
