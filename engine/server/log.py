"""Adds the request's id, which the client receives too, to log lines."""

import logging
import sys
from contextvars import ContextVar

REQUEST: ContextVar[str] = ContextVar("request", default="-")  # set by the guard; "-" outside of requests

_FORMAT = "%(asctime)s %(levelname)s %(name)s %(request)s %(message)s"


def log_to_stderr() -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter(_FORMAT))
    handler.addFilter(name_request)
    logging.basicConfig(level=logging.INFO, handlers=[handler])


def name_request(record: logging.LogRecord) -> bool:
    record.request = REQUEST.get()
    return True
