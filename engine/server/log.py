"""Adds to each log line the id of the request, which the client receives as x-request-id."""

import logging
import sys
from contextvars import ContextVar

REQUEST: ContextVar[str] = ContextVar("request", default="-")  # set by the guard; "-" outside of requests

_FORMAT = "%(asctime)s %(levelname)s %(name)s %(request)s %(message)s"


def log_to_stderr() -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter(_FORMAT))
    handler.addFilter(add_request_id)
    logging.basicConfig(level=logging.INFO, handlers=[handler])


def add_request_id(record: logging.LogRecord) -> bool:
    record.request = REQUEST.get()
    return True
