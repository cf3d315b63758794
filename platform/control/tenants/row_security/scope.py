"""The current tenant decides which organization's rows the running code can read and write.

    as_tenant(organization, project)    rows of one organization: for requests and attempts at jobs
    across_tenants(reason)              rows of all organizations: `Across` lists the permitted reasons
    neither of them                     no rows: code that forgets to set a tenant sees nothing

PostgreSQL's policies (`policies`) compare each row with the setting `slipstream.tenant`. The setting applies to a
transaction, never to a connection, because a pooler may give the connection to another client after the transaction.
A statement outside of any transaction gets a transaction of its own.

The policies know no projects: `accounts.projects` decides which rows of the organization a project's key sees.
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
ALL_TENANTS = "*"  # stands for all organizations; no organization has this id


class Across(StrEnum):
    """The reasons for which code may see rows of all organizations."""

    AUTHENTICATION = "the organization is unknown until the API key has been found"
    CLAIM = "the choice of the next job compares all organizations"
    QUEUE = "a job's position in the queue depends on the numbers of jobs of all organizations"
    HOUSEKEEPING = "a worker looks for due tasks of all organizations"
    SUPERVISION = "supervisors run the deployments of all organizations"
    CONSOLE = "operators administer all organizations"
    HARDWARE = "a device is free only if no organization's job holds it"
    COMMAND = "an operator runs a management command"


_tenant: ContextVar[str] = ContextVar("slipstream_tenant", default="")
_project: ContextVar[str | None] = ContextVar("slipstream_project", default=None)


def current_tenant() -> str:
    """Returns an organization's id, ALL_TENANTS, or "" if no tenant is set."""
    return _tenant.get()


def current_project() -> str | None:
    """Returns the id of the project in which the running code acts, or None if it acts for a whole organization."""
    return _project.get()


@contextmanager
def as_tenant(organization_id: str, project_id: str | None) -> Iterator[None]:
    """Sets the tenant during the block.

    Args: project_id: the project whose rows the code selects and creates; None: the rows of the whole organization.
    """
    assert organization_id not in ("", ALL_TENANTS), "a tenant is an organization's id"
    with _tenant_set_to(organization_id, project_id):
        yield


@contextmanager
def across_tenants(reason: Across) -> Iterator[None]:
    assert isinstance(reason, Across), "a reason must be one of those listed above"
    with _tenant_set_to(ALL_TENANTS):
        yield


@contextmanager
def without_tenant() -> Iterator[None]:
    """Unsets the tenant during the block, for a request that is not authenticated yet.

    `set_request_tenant` can set a tenant until the end of the block.
    """
    with _tenant_set_to(""):
        yield


def set_request_tenant(organization_id: str, project_id: str | None) -> None:
    """Sets the tenant of an authenticated request for the rest of the surrounding block."""
    assert organization_id not in ("", ALL_TENANTS), "a tenant is an organization's id"
    _tenant.set(organization_id)
    _project.set(project_id)


@contextmanager
def _tenant_set_to(tenant: str, project_id: str | None = None) -> Iterator[None]:
    before = _tenant.get(), _project.get()
    _tenant.set(tenant)
    _project.set(project_id)
    try:
        yield
    finally:  # `reset` would fail if the request ends in a copy of the context in which it began
        _tenant.set(before[0])
        _project.set(before[1])


def install(connection: BaseDatabaseWrapper, **_: object) -> None:
    """Receiver of `connection_created`."""
    if connection.vendor == "postgresql" and _execute_as_tenant not in connection.execute_wrappers:
        connection.execute_wrappers.append(_execute_as_tenant)


def _execute_as_tenant(execute: Callable[..., Any], sql: Any, params: Any, many: bool, context: dict[str, Any]) -> Any:
    """Wraps every statement and sets the tenant in the database before it."""
    connection = context["connection"]
    if isinstance(sql, str) and sql.startswith("ROLLBACK TO SAVEPOINT"):
        connection.slipstream_tenant = None  # the rollback also undoes a setting made since the savepoint
        return execute(sql, params, many, context)
    if connection.in_atomic_block or not connection.get_autocommit():
        _set_tenant(connection)
        return execute(sql, params, many, context)
    if not _tenant.get():
        return execute(sql, params, many, context)  # outside of transactions the setting is empty already
    with transaction.atomic(using=connection.alias):
        _set_tenant(connection)
        return execute(sql, params, many, context)


def _set_tenant(connection: Any) -> None:
    """Sets the tenant by an additional statement when a transaction starts or the tenant changes within it."""
    status, tenant = connection.connection.info.transaction_status, _tenant.get()
    if status == TransactionStatus.INERROR:
        return  # no statement is accepted before the rollback
    if status == TransactionStatus.INTRANS and getattr(connection, "slipstream_tenant", None) == tenant:
        return
    with connection.wrap_database_errors:
        connection.connection.execute("SELECT set_config(%s, %s, true)", (SETTING, tenant))
    connection.slipstream_tenant = tenant
