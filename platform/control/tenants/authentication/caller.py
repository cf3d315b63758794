"""The API key of the current request, for code that attributes usage but has no access to the request."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from control.tenants.accounts.models import ApiKey


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    organization_id: str
    api_key_id: str = ""
    project_id: str = ""

    @classmethod
    def of(cls, key: ApiKey) -> "Caller":
        return cls(organization_id=key.organization_id, api_key_id=key.pk, project_id=key.project_id or "")


_caller: ContextVar[Caller | None] = ContextVar("slipstream_caller", default=None)


def current_caller() -> Caller | None:
    return _caller.get()


def set_caller(caller: Caller | None) -> None:
    """Sets the current caller. The base class of views calls this after authentication, and again with None when the
    response is complete."""
    _caller.set(caller)


@contextmanager
def on_account_of(caller: Caller) -> Iterator[None]:
    """Attributes objects created in the block to the caller's key, or else to the current request's key."""
    before = _caller.get()
    _caller.set(caller if caller.api_key_id else before)
    try:
        yield
    finally:
        _caller.set(before)
