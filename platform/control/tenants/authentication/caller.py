"""Whose key the current request came with, for what is attributed to it in places that know no request."""

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
    """By the base of all views: when the key has been checked, and None when the answer is made."""
    _caller.set(caller)


@contextmanager
def on_account_of(caller: Caller) -> Iterator[None]:
    """What is made within the block is attributed to this key; without one, to that of the current request, if any."""
    before = _caller.get()
    _caller.set(caller if caller.api_key_id else before)
    try:
        yield
    finally:
        _caller.set(before)
