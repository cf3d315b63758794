"""Who may read metrics: they tell how much every customer does."""

import hmac
from ipaddress import ip_address

from control.core.settings.config import get_config


def may_read_metrics(*, authorization: str, address: str, is_forwarded: bool) -> bool:
    """With SLIPSTREAM_METRICS_TOKEN, who shows it; without it, this machine's own processes alone.

    Args:
        authorization: the header.
        address: the peer's.
        is_forwarded: a proxy brought it, so the peer says nothing about the caller.
    """
    token = get_config().metrics_token
    if token is not None:
        return hmac.compare_digest(authorization.encode(), f"Bearer {token.get_secret_value()}".encode())
    return not is_forwarded and _is_loopback(address)


def _is_loopback(address: str) -> bool:
    try:
        return ip_address(address).is_loopback
    except ValueError:
        return False
