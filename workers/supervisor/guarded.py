"""Keeps a loop alive: an error in one step is logged, and the loop goes on."""

from collections.abc import Callable

import structlog
from django.db import Error, connection

log = structlog.get_logger(__name__)


def run_guarded(step: Callable[[], object], message: str) -> bool:
    """Returns the truth value of the step's result, or False if it failed.

    Args:
        message: is logged if the step fails. The database connection of this thread is closed then.
    """
    try:
        return bool(step())
    except Error as error:  # the database may be away for a while: no traceback every second
        log.warning(message, error=str(error))
    except Exception:
        log.exception(message)
    connection.close()
    return False
