"""Parses a request's selection of events: their types, their object, and the event after which they begin."""

from dataclasses import dataclass
from typing import Any

from django.http import HttpRequest

from control.core.api.errors import ApiError
from control.tenants.accounts.models import ApiKey, Organization
from control.tenants.events.selectors import event_get, last_seq
from control.tenants.events.types import EVENT_TYPES, matches, patterns


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    organization: Organization
    key: ApiKey
    after: int  # `seq` of the last event that the client has received
    types: list[str] | None = None
    object_id: str | None = None


def filters_of(request: HttpRequest) -> dict[str, Any]:
    """Raises: ApiError: 400."""
    return {"types": _types(request.GET.get("types")), "object_id": _id(request.GET.get("object_id"), "object_id")}


def subscription_of(request: HttpRequest, key: ApiKey) -> Subscription:
    """Call `events_number` first, so that all committed events are numbered. Raises: ApiError: 400, 404."""
    filters = filters_of(request)
    after = _id(request.headers.get("Last-Event-ID") or request.GET.get("after"), "after")
    seq = event_get(key.organization, after).seq if after else last_seq(key.organization)
    assert seq is not None
    return Subscription(organization=key.organization, key=key, after=seq, **filters)


def _types(text: str | None) -> list[str] | None:
    """Raises: ApiError: 400."""
    if text is None:
        return None
    names = text.split(",")
    if unknown := [name for name in names if name not in patterns()]:
        raise ApiError(400, f"types must be names of events, got {unknown[0][:80]!r}", "invalid_value", "types")
    return [name for name in EVENT_TYPES if matches(name, names)]


def _id(text: str | None, param: str) -> str | None:
    """Raises: ApiError: 400."""
    if text is not None and "\0" in text:  # PostgreSQL refuses queries with zero bytes
        raise ApiError(400, f"{param} must not contain zero bytes", "invalid_value", param)
    return text
