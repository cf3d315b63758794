"""Writes the audit event of a change in the transaction of the change.

    @audited("project.rename")                        the decorator runs the service and writes its event in one
                                                      transaction
    @audited("upload.complete", records_itself=True)  the service moves bytes outside of its transaction, so it calls
                                                      `audit_record` itself, in the `core.transactions.change` that
                                                      changes rows

Only the outermost audited service of a request writes an event, not the services that it calls, such as the creation of
a new pipeline's batch. Workers write no audit events; job events record their actions.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from django.db import models, transaction
from django.http import HttpRequest

from control.core.transactions import change
from control.tenants.accounts.keys import KEY_META
from control.tenants.accounts.models import ApiKey, Member, Organization, User
from control.tenants.audit.models import AuditEvent
from control.tenants.row_security.scope import ALL_TENANTS, current_tenant

_request: ContextVar[HttpRequest | None] = ContextVar("slipstream_request", default=None)
_action: ContextVar[str] = ContextVar("slipstream_action", default="")  # of the outermost audited service

_P = ParamSpec("_P")
_R = TypeVar("_R")


@contextmanager
def on_behalf_of(request: HttpRequest) -> Iterator[None]:
    """Services called within the block are recorded as actions of the request's sender."""
    before = _request.get()
    _request.set(request)
    try:
        yield
    finally:
        _request.set(before)  # `reset` would fail if the request ends in a copy of the context in which it began


def audited(action: str, *, records_itself: bool = False) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """Decorates a service. The object of the event is the row that the service returns, or otherwise the first row
    among its arguments.

    If the service returns False, it has changed nothing, and no event is written.
    """

    def decorate(service: Callable[_P, _R]) -> Callable[_P, _R]:
        @wraps(service)
        def run(*args: _P.args, **kwargs: _P.kwargs) -> _R:
            if _request.get() is None or _action.get():
                return service(*args, **kwargs)
            _action.set(action)
            try:
                return service(*args, **kwargs) if records_itself else _recorded(service, args, kwargs, action)
            finally:
                _action.set("")

        return run

    return decorate


def _recorded(service: Callable[..., _R], args: tuple[Any, ...], kwargs: dict[str, Any], action: str) -> _R:
    argument = _first_row((*args, *kwargs.values()))
    # read before the call, because a deleted row has no key any more
    subject = None if argument is None else _Subject.of(argument)
    with change():
        result = service(*args, **kwargs)
        returned = _first_row(result if isinstance(result, tuple) else (result,))
        if returned is not None:
            subject = _Subject.of(returned)
        assert subject is not None, f"{action} neither takes nor returns a row"
        if result is not False:
            _write(action, subject)
    return result


def audit_record(action: str, of: models.Model) -> None:
    """Writes the event if the outermost audited service has this `action`. Call this in the change's transaction."""
    assert transaction.get_connection().in_atomic_block, "an event is written with its change or not at all"
    if _action.get() == action:
        _write(action, _Subject.of(of))


@dataclass(frozen=True, slots=True)
class _Subject:
    type: str
    id: str
    organization_id: str | None

    @classmethod
    def of(cls, row: models.Model) -> "_Subject":
        organization_id = row.pk if isinstance(row, Organization) else getattr(row, "organization_id", None)
        if current_tenant() not in ("", ALL_TENANTS):
            organization_id = current_tenant()
        return cls(str(row._meta.model_name), str(getattr(row, "public_id", row.pk)), organization_id)


def current_actor(organization: Organization) -> str:
    """Returns the id of the current request's sender: a member of the organization, an API key or an operator
    (`user_1`). The id contains no personal data. It is empty if the code runs outside of a request."""
    request = _request.get()
    if request is None:
        return ""
    key, user = request.META.get(KEY_META), getattr(request, "user", None)
    if isinstance(key, ApiKey):
        return key.pk if key.member is None else key.member.public_id
    assert isinstance(user, User), "a request comes from an API key or an operator"
    member = Member.objects.filter(organization=organization, user=user).first()
    return f"user_{user.pk}" if member is None else member.public_id


def _first_row(values: Iterable[object]) -> models.Model | None:
    return next((value for value in values if isinstance(value, models.Model)), None)


def _write(action: str, subject: _Subject) -> None:
    request = _request.get()
    assert request is not None, "only requests leave audit events"
    actor_type, actor_id = _actor(request)
    AuditEvent.objects.create(
        organization_id=subject.organization_id,
        actor_type=actor_type,
        actor_id=actor_id,
        action=action,
        object_type=subject.type,
        object_id=subject.id,
        ip=request.META.get("REMOTE_ADDR") or None,
        request_id=request.META["SLIPSTREAM_REQUEST_ID"],
    )


def _actor(request: HttpRequest) -> tuple[AuditEvent.Actor, str]:
    key = request.META.get(KEY_META)
    if isinstance(key, ApiKey):
        return AuditEvent.Actor.API_KEY, key.pk
    user = getattr(request, "user", None)
    assert isinstance(user, User), "a request comes from an API key or an operator"
    return AuditEvent.Actor.USER, user.get_username()
