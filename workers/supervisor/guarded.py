"""Runs a step of an endless loop; an error in the step is logged and does not end the loop."""

from collections.abc import Callable

import structlog
from django.db import Error, connection

log = structlog.get_logger(__name__)


def run_guarded(step: Callable[[], object], message: str) -> bool:
    """Returns the truth value of the step's result, or False if the step raised an exception.

    Effects: if the step fails, `message` is logged, and the database connection of this thread is closed.
    """
    try:
        return bool(step())
    except Error as error:  # the database may be unavailable for a while; a traceback every second would fill the log
        log.warning(message, error=str(error))
    except Exception:
        log.exception(message)
    connection.close()
    return False
