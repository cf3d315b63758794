"""`manage.py check --database default` warns of a database role that bypasses row-level security."""

from collections.abc import Sequence
from typing import Any

from django.core.checks import CheckMessage, Tags, Warning, register  # noqa: A004  # Django's class
from django.db import connections


@register(Tags.database)
def check_role(databases: Sequence[str] | None = None, **_: Any) -> list[CheckMessage]:
    return [message for alias in databases or () for message in _check(alias)]


def _check(alias: str) -> list[CheckMessage]:
    connection = connections[alias]
    if connection.vendor != "postgresql":
        return []
    with connection.cursor() as cursor:
        cursor.execute("SELECT rolname, rolsuper OR rolbypassrls FROM pg_roles WHERE rolname = current_user")
        name, bypasses = cursor.fetchone()
    if not bypasses:
        return []
    hint = "Connect as a role that owns nothing, such as the one of SLIPSTREAM_DATABASE_ROLE; migrate as the owner."
    return [Warning(f"the role {name!r} bypasses row-level security", hint=hint, id="tenancy.W001")]
