"""Calls a function for rows of many organizations, each time with the rights of the row's organization and project."""

from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import Any, TypeVar

import structlog
from django.db.models import Model

from control.tenants.row_security.scope import as_tenant

log = structlog.get_logger(__name__)
R = TypeVar("R", bound=Model)


def each_as_tenant(
    rows: Iterable[R],
    step: Callable[[R], object],
    *,
    failure: str,
    name: str,
    project_of: Callable[[Any], str | None] = attrgetter("project_id"),
) -> None:
    """Calls `step` for each row. An error in one row is logged, and does not stop the others.

    Args:
        failure: the message of the log if a step fails, such as "could not advance a pipeline".
        name: the name of the row's id in the log.
        project_of: returns the id of the row's project; None: all of the organization's rows are visible.
    """
    for row in rows:
        try:
            with as_tenant(row.organization_id, project_of(row)):  # type: ignore[attr-defined]  # rows of tenants
                step(row)
        except Exception:
            log.exception(failure, **{name: row.pk})
