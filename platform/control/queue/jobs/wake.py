"""Sends wake-ups to workers. A wake-up may be lost, duplicated or late, because the reconciler repeats wake-ups.

Without Redis no wake-ups are sent, and workers poll. If Redis is down or hangs, the API must still respond: every
socket has a timeout, and after a failure no wake-ups are sent for a few seconds.
"""

import time
from functools import lru_cache, partial
from typing import Any

import structlog
from celery import Celery
from django.db import transaction
from kombu.exceptions import OperationalError
from redis.exceptions import RedisError

from control.core.settings.config import get_config

log = structlog.get_logger(__name__)

TASK_NAME = "workers.look_at"
QUEUE = "slipstream.jobs"
MAX_BACKLOG = 100  # unread messages; without a limit, repeated wake-ups would pile up while all workers are busy
PAUSE_AFTER_FAILURE_SECONDS = 5.0
# With the default timeouts, publishing to a Redis that hangs never returns.
TRANSPORT_OPTIONS: dict[str, Any] = {
    "visibility_timeout": 3600,
    "socket_timeout": 5,
    "socket_connect_timeout": 2,
    "socket_keepalive": True,
    "health_check_interval": 10,
    "max_retries": 1,
    "interval_start": 0,
    "interval_step": 0.1,
    "interval_max": 0.2,
}

_redis_retry_at = 0.0


def wake_on_commit(job_id: str) -> None:
    transaction.on_commit(partial(wake, job_id))  # partial, not lambda: binds now


def wake(job_id: str) -> None:
    """Sends a wake-up for the job. Does not raise if the broker is down, and takes about two seconds at most."""
    global _redis_retry_at
    url = get_config().redis_url
    if url is None or time.monotonic() < _redis_retry_at:
        return
    try:
        _producer(url.get_secret_value()).send_task(
            TASK_NAME, args=[job_id], queue=QUEUE, retry=False, ignore_result=True
        )
    except (OperationalError, RedisError, OSError) as error:
        _redis_retry_at = time.monotonic() + PAUSE_AFTER_FAILURE_SECONDS
        log.warning("wake-up not sent; the reconciler will send it", job_id=job_id, error=str(error))


def is_backed_up() -> bool:
    """Returns whether more wake-ups are useless: many are unread, or Redis cannot be reached. Does not raise."""
    global _redis_retry_at
    url = get_config().redis_url
    if url is None or time.monotonic() < _redis_retry_at:
        return True
    try:
        with _producer(url.get_secret_value()).connection_for_write() as connection:
            return bool(connection.default_channel.client.llen(QUEUE) >= MAX_BACKLOG)
    except (OperationalError, RedisError, OSError) as error:
        _redis_retry_at = time.monotonic() + PAUSE_AFTER_FAILURE_SECONDS
        log.warning("queue not reachable", error=str(error))
        return True


@lru_cache(maxsize=1)
def _producer(url: str) -> Celery:
    app = Celery("slipstream-wake", broker=url, set_as_current=False)
    app.conf.update(
        # Two timeouts can add up: one on a connection that was open, then one on a new connection.
        broker_transport_options={**TRANSPORT_OPTIONS, "socket_timeout": 1, "socket_connect_timeout": 1},
        task_publish_retry=False,
        task_serializer="json",
        accept_content=["json"],
        task_ignore_result=True,
    )
    return app
