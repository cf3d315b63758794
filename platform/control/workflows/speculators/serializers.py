"""What a request to export or import a speculator may say."""

from rest_framework import serializers

from control.core.api.fields import BodyInput, Choice
from workers.exports.formats import FORMATS


class ExportInput(BodyInput):
    format = Choice(choices=tuple(FORMATS))


class ImportInput(BodyInput):
    file_id = serializers.CharField(max_length=80)
    format = Choice(choices=tuple(FORMATS))
    model = serializers.CharField(max_length=120)
    name = serializers.RegexField(r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z")
