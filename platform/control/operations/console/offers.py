"""What forms offer of what an organization has, and the check of what came back."""

from typing import Any, cast

from django.db.models import QuerySet
from rest_framework.serializers import Serializer

from control.data.files.models import File
from control.data.files.selectors import files_list
from control.models.catalog.models import Speculator
from control.models.catalog.selectors import base_models_list, speculators_list
from control.operations.console.request_forms import Choices
from control.tenants.accounts.models import Organization

MOST = 500  # that a field offers, newest first


def checked(contract: type[Serializer[dict[str, Any]]], body: dict[str, Any]) -> dict[str, Any]:
    form = contract(data=body)
    form.is_valid(raise_exception=True)
    return cast(dict[str, Any], form.validated_data)


def ids(rows: QuerySet[Any]) -> Choices:
    return [(row.pk, str(row) if row.pk in str(row) else f"{row} ({row.pk})") for row in rows.order_by("-pk")[:MOST]]


def same(values: tuple[str, ...]) -> Choices:
    return [(value, value) for value in values]


def models(organization: Organization) -> Choices:
    return [(name, name) for name in base_models_list(organization).order_by("name").values_list("name", flat=True)]


def prompts(organization: Organization) -> Choices:
    return ids(files_list(organization, purpose=File.Purpose.BATCH))


def ready(organization: Organization) -> Choices:
    return ids(speculators_list(organization).filter(status=Speculator.Status.READY))
