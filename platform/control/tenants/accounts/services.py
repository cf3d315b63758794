"""The service that records the last use of an API key; `administration` has the other services."""

import datetime as dt

from control.tenants.accounts.models import ApiKey


def api_key_touch(*, key: ApiKey, now: dt.datetime) -> None:
    """Records the use of the key at most once a minute, because a write in every request would slow requests down."""
    minute_ago = now - dt.timedelta(minutes=1)
    if key.last_used_at is not None and key.last_used_at > minute_ago:
        return
    ApiKey.objects.filter(pk=key.pk).exclude(last_used_at__gt=minute_ago).update(last_used_at=now)
