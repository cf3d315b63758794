"""Logging of a child process: one line per log event on standard error, in the supervisor's format, with the job's ids.

The supervisor passes the format and the ids in an environment variable:

    SLIPSTREAM_CHILD_LOG={"json": true, "ids": {"organization_id": …, "job_id": …, "fence": …, "request_id": …}}
"""

import json
import logging
import os
from typing import Any, TextIO

import structlog
from structlog.stdlib import ProcessorFormatter
from structlog.typing import EventDict, Processor

VARIABLE = "SLIPSTREAM_CHILD_LOG"


def configure_logging(stream: TextIO) -> None:
    """Effects: the root logger writes to `stream`. Without the environment variable, lines are text without ids."""
    settings: dict[str, Any] = json.loads(os.environ.get(VARIABLE) or "{}")
    ids = settings.get("ids", {})

    def identify(logger: object, method: str, event: EventDict) -> EventDict:
        return {**ids, **event}

    common: list[Processor] = [
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.stdlib.ExtraAdder(),  # the fields of `extra`, such as the number of a shard
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        identify,
    ]
    formatter = ProcessorFormatter(
        foreign_pre_chain=common,
        processors=[ProcessorFormatter.remove_processors_meta, *_renderers(as_json=settings.get("json", False))],
    )
    handler = logging.StreamHandler(stream)
    handler.setFormatter(formatter)
    logging.basicConfig(handlers=[handler], level=logging.INFO)


def _renderers(*, as_json: bool) -> tuple[Processor, ...]:
    if as_json:
        return structlog.processors.format_exc_info, structlog.processors.JSONRenderer()
    return (structlog.dev.ConsoleRenderer(colors=False, exception_formatter=structlog.dev.plain_traceback),)
