"""Checks whether this process can serve requests, by calling its dependencies.

the database is unreachable         503: no request can be served; take the process out of rotation
Redis or storage is unreachable     200, degraded: most requests still work, and other processes have the same problem
"""

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache
from typing import Any

import boto3
import redis
import structlog
from botocore.config import Config as BotoConfig
from django.db import DEFAULT_DB_ALIAS, connections

from control.core.settings.config import get_config

log = structlog.get_logger(__name__)

TIMEOUT_SECONDS = 2.0  # of one request to Redis or storage, which is not retried: the next probe follows in seconds
WAIT_SECONDS = 3.0  # for all checks together, less than the prober's timeout; a slower check counts as failed
_REQUIRED = "database"
_pool = ThreadPoolExecutor(max_workers=8, thread_name_prefix="readiness")


def readiness() -> tuple[int, dict[str, Any]]:
    """Returns the HTTP status and the response: `status`, and in `checks` each dependency: `ok` or `unavailable`."""
    futures = {name: _pool.submit(check) for name, check in _checks().items()}
    deadline = time.monotonic() + WAIT_SECONDS
    checks = {name: _outcome(name, future, deadline) for name, future in futures.items()}
    if checks[_REQUIRED] != "ok":
        return 503, {"status": "unavailable", "checks": checks}
    return 200, {"status": "ok" if set(checks.values()) == {"ok"} else "degraded", "checks": checks}


def _checks() -> Mapping[str, Callable[[], object]]:
    config = get_config()
    checks: dict[str, Callable[[], object]] = {_REQUIRED: _check_database}
    if config.redis_url is not None:
        url = config.redis_url.get_secret_value()
        checks["redis"] = lambda: _check_redis(url)
    if config.s3_bucket is not None:
        bucket = config.s3_bucket
        checks["storage"] = lambda: _s3(config.s3_endpoint_url).head_bucket(Bucket=bucket)
    return checks


def _outcome(name: str, future: "Future[object]", deadline: float) -> str:
    try:
        future.result(max(0.0, deadline - time.monotonic()))
    except Exception as error:  # after any error, the dependency counts as unavailable
        log.warning("dependency unavailable", dependency=name, error=f"{type(error).__name__}: {error}")
        return "unavailable"
    return "ok"


def _check_database() -> None:
    """Opens a new connection, because an open one would not show whether the database still accepts connections."""
    connection = connections.create_connection(DEFAULT_DB_ALIAS)
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
    finally:
        connection.close()


def _check_redis(url: str) -> None:
    with redis.Redis.from_url(
        url, socket_timeout=TIMEOUT_SECONDS, socket_connect_timeout=TIMEOUT_SECONDS, retry=None
    ) as client:
        client.ping()


@lru_cache(maxsize=4)
def _s3(endpoint_url: str | None) -> Any:  # boto3 builds its clients at run time: they have no static type
    limits = BotoConfig(connect_timeout=TIMEOUT_SECONDS, read_timeout=TIMEOUT_SECONDS, retries={"max_attempts": 0})
    return boto3.client("s3", endpoint_url=endpoint_url, config=limits)
