"""The boundary of a loop that must not end: what goes wrong in one round is said, and the next tries again."""

from collections.abc import Callable

import structlog
from django.db import Error, connection

log = structlog.get_logger(__name__)


def safely(chore: Callable[[], object], complaint: str) -> bool:
    """Returns: what the chore did, as a truth; False: it failed. Effects: then this thread's connection is closed."""
    try:
        return bool(chore())
    except Error as error:  # of the database, which may be away for a while: no traceback every second
        log.warning(complaint, error=str(error))
    except Exception:
        log.exception(complaint)
    connection.close()
    return False
