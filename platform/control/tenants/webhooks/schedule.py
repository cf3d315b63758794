"""The retry schedule of deliveries. `docs/account.md` lists the same pauses: change both together."""

import datetime as dt
import random
from email.utils import parsedate_to_datetime

_S, _M, _H = dt.timedelta(seconds=1), dt.timedelta(minutes=1), dt.timedelta(hours=1)
# The pause before each attempt. This is the schedule recommended by Standard Webhooks.
PAUSES = (0 * _S, 5 * _S, 5 * _M, 30 * _M, 2 * _H, 5 * _H, 10 * _H, 14 * _H, 20 * _H, 24 * _H)
JITTER = 0.1  # up to this fraction of the pause is added, so that a receiver that recovers gets no burst of requests
MAX_RETRY_AFTER = dt.timedelta(hours=24)


def next_attempt(*, attempts: int, now: dt.datetime, retry_after: str | None) -> dt.datetime | None:
    """Returns the time of the next attempt after `attempts` failed ones, or None after the last attempt.

    A receiver's `Retry-After` can only postpone the next attempt, by a day at most.
    """
    if attempts >= len(PAUSES):
        return None
    pause = PAUSES[attempts] * (1 + random.uniform(0, JITTER))
    return now + max(pause, min(_parse_retry_after(retry_after, now), MAX_RETRY_AFTER))


def _parse_retry_after(retry_after: str | None, now: dt.datetime) -> dt.timedelta:
    """Parses the header, which contains seconds or a date; other values count as zero."""
    text = (retry_after or "").strip()
    if text.isascii() and text.isdigit():
        return dt.timedelta(seconds=min(int(text[:9]), MAX_RETRY_AFTER.total_seconds()))
    try:
        moment = parsedate_to_datetime(text)
    except ValueError:
        return dt.timedelta()
    return moment - now if moment.tzinfo is not None else dt.timedelta()
