"""When a delivery is tried again. The schedule is published: change it with the documentation."""

import datetime as dt
import random
from email.utils import parsedate_to_datetime

_S, _M, _H = dt.timedelta(seconds=1), dt.timedelta(minutes=1), dt.timedelta(hours=1)
# Before each attempt; Standard Webhooks' own.
PAUSES = (0 * _S, 5 * _S, 5 * _M, 30 * _M, 2 * _H, 5 * _H, 10 * _H, 14 * _H, 20 * _H, 24 * _H)
JITTER = 0.1  # of the pause, added: a receiver that comes back is not called by everything at once
MAX_RETRY_AFTER = dt.timedelta(hours=24)


def next_attempt(*, attempts: int, now: dt.datetime, retry_after: str | None) -> dt.datetime | None:
    """After so many attempts in vain. None: there is no other.

    A receiver's `Retry-After` can put the next attempt off, by a day at most, never hasten it.
    """
    if attempts >= len(PAUSES):
        return None
    pause = PAUSES[attempts] * (1 + random.uniform(0, JITTER))
    return now + max(pause, min(_asked(retry_after, now), MAX_RETRY_AFTER))


def _asked(retry_after: str | None, now: dt.datetime) -> dt.timedelta:
    """Seconds or a date; zero for anything else."""
    text = (retry_after or "").strip()
    if text.isascii() and text.isdigit():
        return dt.timedelta(seconds=min(int(text[:9]), MAX_RETRY_AFTER.total_seconds()))
    try:
        moment = parsedate_to_datetime(text)
    except ValueError:
        return dt.timedelta()
    return moment - now if moment.tzinfo is not None else dt.timedelta()
