"""The fingerprint of a request: a hash of its query, fields and files. The order of fields does not change it."""

import hashlib
import json
from typing import Any

from django.http import QueryDict
from rest_framework.exceptions import UnsupportedMediaType
from rest_framework.request import Request

from control.core.api.errors import ApiError
from control.core.storage.upload import StagedUpload


def fingerprint(request: Request) -> str:
    """Reads the body and returns a hexadecimal SHA-256. Raises: ApiError, and the parse errors of REST framework."""
    values = {"query": _form(request.query_params), "body": _body(request)}
    text = json.dumps(values, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


def is_dry_run(request: Request) -> bool:
    """Returns whether the request only asks for a plan. Its Idempotency-Key then stays free for the real request."""
    try:
        data = request.data
    except UnsupportedMediaType:
        return False
    return isinstance(data, dict) and data.get("validate_only") is True


def _body(request: Request) -> Any:
    try:
        data = request.data
    except UnsupportedMediaType:  # the route has no parser for this content type, so the raw bytes are compared
        return hashlib.sha256(request._request.body).hexdigest()
    return _form(data) if isinstance(data, QueryDict) else data


def _form(form: QueryDict) -> dict[str, list[Any]]:
    return {name: [_field(value) for value in values] for name, values in form.lists()}


def _field(value: Any) -> Any:
    if isinstance(value, StagedUpload):
        return {"filename": value.name, "sha256": value.staged.sha256}
    if not isinstance(value, str):
        raise ApiError(400, "Files may not be sent here.", "invalid_request")
    return value
