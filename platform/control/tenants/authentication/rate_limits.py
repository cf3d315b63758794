"""Limits an organization's requests per minute, over all its API keys.

Redis counts the requests of all processes in a sliding window. While Redis cannot be reached, each process counts
separately: more requests than the limit may then pass, but none is refused wrongly. If Redis hangs, one request waits
for the timeout; after that Redis is not used for a few seconds.
"""

import threading
import time
from contextlib import nullcontext
from dataclasses import dataclass
from functools import lru_cache

import structlog
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from limits import RateLimitItemPerMinute
from limits.errors import StorageError
from limits.storage import MemoryStorage, RedisStorage
from limits.strategies import SlidingWindowCounterRateLimiter
from redis import ConnectionPool

from control.core.api.errors import ApiError
from control.core.api.middleware import make_middleware
from control.core.settings.config import get_config
from control.tenants.accounts.models import Organization
from control.tenants.quotas.quota import quota_with

log = structlog.get_logger(__name__)

TIMEOUT_SECONDS = 0.25
PAUSE_AFTER_FAILURE_SECONDS = 5.0
_WINDOW_SECONDS = 60
_META = "SLIPSTREAM_ALLOWANCE"

_redis_retry_at = 0.0
# Two threads that call MemoryStorage of limits 5.8 at once may start its timer twice, which raises RuntimeError.
_memory_lock = threading.Lock()


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowance:
    limit: int
    remaining: int
    reset_seconds: int  # until the current window ends

    def headers(self) -> dict[str, str]:
        """Returns the headers of draft-ietf-httpapi-ratelimit-headers and those that OpenAI's clients read."""
        return {
            "RateLimit-Policy": f'"requests";q={self.limit};w={_WINDOW_SECONDS}',
            "RateLimit": f'"requests";r={self.remaining};t={self.reset_seconds}',
            "x-ratelimit-limit-requests": str(self.limit),
            "x-ratelimit-remaining-requests": str(self.remaining),
            "x-ratelimit-reset-requests": f"{self.reset_seconds}s",
        }


def request_count(request: HttpRequest, organization: Organization) -> None:
    """Counts a request. Raises: ApiError: 429. Effects: the response gets rate limit headers, whatever its status."""
    limit = quota_with(getattr(organization, "limits", None)).requests_per_minute
    if limit == 0:
        return
    allowed, allowance = _count(RateLimitItemPerMinute(limit), organization.pk)
    request.META[_META] = allowance
    if not allowed:
        message = f"Your organization may make {limit:,} requests a minute. Try again in {allowance.reset_seconds} s."
        raise ApiError(429, message, "rate_limit_exceeded", headers={"Retry-After": str(allowance.reset_seconds)})


def _count(item: RateLimitItemPerMinute, key: str) -> tuple[bool, Allowance]:
    global _redis_retry_at
    url = get_config().redis_url
    if url is not None and time.monotonic() >= _redis_retry_at:
        try:
            return _hit(_redis_limiter(url.get_secret_value()), item, key)
        except StorageError as error:
            _redis_retry_at = time.monotonic() + PAUSE_AFTER_FAILURE_SECONDS
            log.warning("Redis not reachable; each process counts requests by itself", error=str(error))
    with _memory_lock:
        return _hit(_memory_limiter(), item, key)


def _hit(limiter: SlidingWindowCounterRateLimiter, item: RateLimitItemPerMinute, key: str) -> tuple[bool, Allowance]:
    allowed = limiter.hit(item, key)
    stats = limiter.get_window_stats(item, key)
    reset_seconds = max(1, min(_WINDOW_SECONDS, round(stats.reset_time - time.time())))
    return allowed, Allowance(limit=item.amount, remaining=stats.remaining, reset_seconds=reset_seconds)


@lru_cache(maxsize=1)
def _redis_limiter(url: str) -> SlidingWindowCounterRateLimiter:
    pool = ConnectionPool.from_url(
        url, socket_timeout=TIMEOUT_SECONDS, socket_connect_timeout=TIMEOUT_SECONDS, retry=None
    )
    storage = RedisStorage(url, connection_pool=pool, key_prefix="slipstream.limits", wrap_exceptions=True)
    return SlidingWindowCounterRateLimiter(storage)


@lru_cache(maxsize=1)
def _memory_limiter() -> SlidingWindowCounterRateLimiter:
    return SlidingWindowCounterRateLimiter(MemoryStorage())


def _add_headers(request: HttpRequest, response: HttpResponseBase) -> None:
    allowance = request.META.get(_META)
    if isinstance(allowance, Allowance):
        for name, value in allowance.headers().items():
            response[name] = value


RateLimitMiddleware = make_middleware(lambda request: nullcontext(), _add_headers)
