"""Whose rows the code that runs now may touch.

    as_tenant(organization)     one organization's: requests and attempts at jobs
    across_tenants(reason)      everybody's: for the reasons listed in `Across`, and no other
    neither                     nobody's: what forgets to say for whom it works sees nothing

PostgreSQL's policies (`policies`) compare each row with the setting `slipstream.tenant`. It is set for a transaction
only, never for a connection: a pooler may give the connection to somebody else after the transaction. A statement
outside of any transaction gets one of its own.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from enum import StrEnum
from typing import Any

from django.db import transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from psycopg.pq import TransactionStatus

SETTING = "slipstream.tenant"
EVERYBODY = "*"  # no organization's id


class Across(StrEnum):
    """Why code may see more than one organization's rows."""

    AUTHENTICATION = "a key says whose it is"
    CLAIM = "whose turn it is depends on all"
    HOUSEKEEPING = "a worker looks for what is due"
    SUPERVISION = "one supervisor keeps the endpoints of all"
    CONSOLE = "operators look after all"
    COMMAND = "an operator's command line"


_tenant: ContextVar[str] = ContextVar("slipstream_tenant", default="")


def current_tenant() -> str:
    """An organization's id, EVERYBODY, or "" for nobody."""
    return _tenant.get()


@contextmanager
def as_tenant(organization_id: str) -> Iterator[None]:
    assert organization_id not in ("", EVERYBODY), "an organization's id"
    with _working_for(organization_id):
        yield


@contextmanager
def across_tenants(reason: Across) -> Iterator[None]:
    assert isinstance(reason, Across), "one of the reasons listed above"
    with _working_for(EVERYBODY):
        yield


@contextmanager
def for_nobody() -> Iterator[None]:
    """A request before its key is known. What it enters by `enter_tenant` ends with the block."""
    with _working_for(""):
        yield


def enter_tenant(organization_id: str) -> None:
    """For the rest of the surrounding block: a request has shown whose it is."""
    assert organization_id not in ("", EVERYBODY), "an organization's id"
    _tenant.set(organization_id)


@contextmanager
def _working_for(tenant: str) -> Iterator[None]:
    before = _tenant.get()
    _tenant.set(tenant)
    try:
        yield
    finally:
        _tenant.set(before)  # not `reset`: a request may begin in one thread's context and end in another's copy


def install(connection: BaseDatabaseWrapper, **_: object) -> None:
    """Receiver of `connection_created`."""
    if connection.vendor == "postgresql" and _tell_first not in connection.execute_wrappers:
        connection.execute_wrappers.append(_tell_first)


def _tell_first(execute: Callable[..., Any], sql: Any, params: Any, many: bool, context: dict[str, Any]) -> Any:
    """Wraps every statement, and tells the database for whom it is."""
    connection = context["connection"]
    if isinstance(sql, str) and sql.startswith("ROLLBACK TO SAVEPOINT"):
        connection.slipstream_told = None  # a setting made since the savepoint is undone with it
        return execute(sql, params, many, context)
    if connection.in_atomic_block or not connection.get_autocommit():
        _tell(connection)
        return execute(sql, params, many, context)
    if not _tenant.get():
        return execute(sql, params, many, context)  # outside of a transaction nothing is set: nobody's, as it should
    with transaction.atomic(using=connection.alias):
        _tell(connection)
        return execute(sql, params, many, context)


def _tell(connection: Any) -> None:
    """One more statement at the start of a transaction, and at each change of tenant within it."""
    status, tenant = connection.connection.info.transaction_status, _tenant.get()
    if status == TransactionStatus.INERROR:
        return  # nothing can be said before the rollback
    if status == TransactionStatus.INTRANS and getattr(connection, "slipstream_told", None) == tenant:
        return
    with connection.wrap_database_errors:
        connection.connection.execute("SELECT set_config(%s, %s, true)", (SETTING, tenant))
    connection.slipstream_told = tenant
