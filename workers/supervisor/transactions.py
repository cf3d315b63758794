"""Limits how long a worker that stopped in the middle of a transaction keeps its locks after its lease expired.

Its connection stays open, and PostgreSQL keeps the locks of an open transaction. Only workers have this limit: their
transactions wait for nothing but the database, while a transaction of a request may store a large upload.
"""

from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created

from control.core.settings.config import get_config

LEASES = 2  # far longer than any transaction; others wait for one lease in any case


def transactions_limit() -> None:
    """Call it before the process uses the database for the first time."""
    connection_created.connect(_limit, dispatch_uid=__name__)


def _limit(connection: BaseDatabaseWrapper, **_: object) -> None:
    if connection.vendor == "postgresql":
        milliseconds = round(1000 * LEASES * get_config().lease_seconds)
        with connection.cursor() as cursor:
            cursor.execute("SELECT set_config('idle_in_transaction_session_timeout', %s, false)", [str(milliseconds)])
