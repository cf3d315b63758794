"""Limits how long a worker that hangs in the middle of a transaction can keep its database locks.

When a worker hangs, its connection stays open, and PostgreSQL keeps the locks of the open transaction, although the
worker's lease has expired. Only workers have this limit: their transactions wait for nothing but the database, while
the transaction of an API request may wait for a large upload.
"""

from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created

from control.core.settings.config import get_config

NUM_LEASES = 2  # the limit as a number of lease periods; normal transactions are far shorter


def transactions_limit() -> None:
    """Sets the limit for the database connections of this process. Must be called before the first connection."""
    connection_created.connect(_limit, dispatch_uid=__name__)


def _limit(connection: BaseDatabaseWrapper, **_: object) -> None:
    if connection.vendor == "postgresql":
        milliseconds = round(1000 * NUM_LEASES * get_config().lease_seconds)
        with connection.cursor() as cursor:
            cursor.execute("SELECT set_config('idle_in_transaction_session_timeout', %s, false)", [str(milliseconds)])
