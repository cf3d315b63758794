"""Captures as the API shows them, and what a request for one may say."""

from typing import Any

from django.db.models import Count, Min
from rest_framework import serializers

from control.core.api.fields import BodyInput
from control.core.api.times import unix
from control.serving.captures.models import Capture
from control.serving.captures.selectors import requests_kept
from control.serving.captures.services import MAX_HOURS


def capture_body(capture: Capture) -> dict[str, Any]:
    kept = requests_kept(capture).aggregate(count=Count("pk"), oldest=Min("created_at"))
    return {
        "object": "capture",
        "deployment_id": capture.deployment_id,
        "hours": capture.hours,
        "num_requests": kept["count"],
        "oldest_at": unix(kept["oldest"]),
        "created_at": unix(capture.created_at),
    }


class CaptureInput(BodyInput):
    hours = serializers.IntegerField(min_value=1, max_value=MAX_HOURS)
