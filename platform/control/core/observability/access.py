"""Access control for /metrics, which shows how much every customer uses the service."""

import hmac
from ipaddress import ip_address

from control.core.settings.config import get_config


def may_read_metrics(*, authorization: str, address: str, is_forwarded: bool) -> bool:
    """Admits callers that present SLIPSTREAM_METRICS_TOKEN or, if it is not set, only processes of this machine.

    Args:
        authorization: the Authorization header.
        address: the peer's IP address.
        is_forwarded: whether a proxy forwarded the request, so that `address` is the proxy's.
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
