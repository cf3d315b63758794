"""A worker that stands still in the middle of a transaction must not keep its rows when its lease is long over.

Its connection lives on, and PostgreSQL keeps the locks of an open transaction for as long. Only workers have this
limit: none of their transactions waits for anything but the database, while one of a request may store a large upload.
"""

from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created

from control.core.settings.config import get_config

LEASES = 2  # far longer than any transaction, and not much longer than others have to wait anyway


def transactions_limit() -> None:
    """Call it before the process's first look at the database."""
    connection_created.connect(_limit, dispatch_uid=__name__)


def _limit(connection: BaseDatabaseWrapper, **_: object) -> None:
    if connection.vendor == "postgresql":
        milliseconds = round(1000 * LEASES * get_config().lease_seconds)
        with connection.cursor() as cursor:
            cursor.execute("SELECT set_config('idle_in_transaction_session_timeout', %s, false)", [str(milliseconds)])
