"""Speculators as the API shows them, and the requests to export or import one."""

from typing import Any

from rest_framework import serializers

from control.core.api.fields import BodyInput, Choice
from control.core.api.times import unix
from control.models.catalog.models import Speculator
from workers.exports.formats import FORMATS


def speculator_body(speculator: Speculator) -> dict[str, Any]:
    return {
        "id": speculator.pk,
        "object": "speculator",
        "name": speculator.name,
        "version": speculator.version,
        "kind": speculator.kind,
        "model": speculator.base_model.name,
        "status": speculator.status,
        "target_revision": speculator.target_revision,
        "training": speculator.training,
        "report": speculator.report,
        "created_at": unix(speculator.created_at),
    }


class ExportInput(BodyInput):
    format = Choice(choices=tuple(FORMATS))


class ImportInput(BodyInput):
    file_id = serializers.CharField(max_length=80)
    format = Choice(choices=tuple(FORMATS))
    model = serializers.CharField(max_length=120)
    name = serializers.RegexField(r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z")
