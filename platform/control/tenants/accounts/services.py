"""The writer of the time at which a key was last used; `administration` has the other writers."""

import datetime as dt

from control.tenants.accounts.models import ApiKey


def api_key_touch(*, key: ApiKey, now: dt.datetime) -> None:
    """Notes that the key was used, at most once a minute: a write per request would make reads wait for writers."""
    minute_ago = now - dt.timedelta(minutes=1)
    if key.last_used_at is not None and key.last_used_at > minute_ago:
        return
    ApiKey.objects.filter(pk=key.pk).exclude(last_used_at__gt=minute_ago).update(last_used_at=now)
