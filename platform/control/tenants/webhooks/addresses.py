"""Checks that the addresses of webhooks are on the public internet.

`ipaddress.is_global` is not enough (Python 3.11). It is true for multicast, for 6to4 relays and for IPv6 ranges that
embed an IPv4 address, which can be private. For example, behind NAT64, 64:ff9b::a9fe:a9fe is 169.254.169.254.
"""

import re
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from urllib.parse import urlsplit

from control.core.api.errors import ApiError

PORTS = frozenset({80, 443})
MAX_URL_LENGTH = 2048
_IPV4_REFUSED = (IPv4Network("192.88.99.0/24"),)  # 6to4 relays
_IPV6_UNICAST = IPv6Network("2000::/3")  # assigned unicast; excludes NAT64, ::127.0.0.1 and fec0::
_IPV6_REFUSED = (
    IPv6Network("2001::/23"),  # Teredo and other protocols
    IPv6Network("2002::/16"),  # 6to4: embeds an IPv4 address
    IPv6Network("3fff::/20"),  # documentation
)
_HOST_NAME = re.compile(r"(?=.{1,253}$)(?:[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?\.)+[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
_PRIVATE_SUFFIXES = ("localhost", "local", "localdomain", "internal", "intranet", "lan", "home", "corp", "arpa")
_NUMERIC_LABEL = re.compile(r"[0-9]+|0x[0-9a-f]*")


def is_public(address: str) -> bool:
    """Returns whether `address` is a numeric unicast address of the public internet."""
    try:
        parsed = ip_address(address)
    except ValueError:
        return False
    if isinstance(parsed, IPv6Address) and parsed.ipv4_mapped is not None:
        parsed = parsed.ipv4_mapped
    if not parsed.is_global or parsed.is_multicast:
        return False
    if isinstance(parsed, IPv4Address):
        return not any(parsed in network for network in _IPV4_REFUSED)
    return parsed in _IPV6_UNICAST and not any(parsed in network for network in _IPV6_REFUSED)


def check_url(url: str, *, allow_private: bool) -> str:
    """Refuses URLs that can be recognised as invalid without a DNS lookup. `transport` checks resolved addresses.

    Raises: ApiError: 400.
    """
    if len(url) > MAX_URL_LENGTH or not url.isascii() or not url.isprintable() or set(url) & set(' \\"<>^`{|}'):
        raise _refused(f"must have at most {MAX_URL_LENGTH} characters, all of them legal in a URL")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise _refused("must be a URL") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise _refused("must begin with https:// or http:// and name a host")
    if parts.username is not None or parts.password is not None or parts.fragment:
        raise _refused("must hold neither a user's name nor a fragment")
    if not allow_private:
        if port is not None and port not in PORTS:
            raise _refused(f"must use one of the ports {sorted(PORTS)}")
        if not (is_public(parts.hostname) or _is_public_name(parts.hostname)):
            raise _refused("must name a host on the public internet")
    return url


def _is_public_name(host: str) -> bool:
    """Refuses private suffixes, and spellings of addresses that resolvers accept: 127.1, 0x7f.1, 2130706433."""
    if not _HOST_NAME.fullmatch(host):
        return False
    last = host.rsplit(".", 1)[1]
    return last not in _PRIVATE_SUFFIXES and not _NUMERIC_LABEL.fullmatch(last)


def _refused(message: str) -> ApiError:
    return ApiError(400, f"url {message}.", "invalid_url", "url")
