"""Range requests (RFC 9110) for one range of bytes. A request for several ranges gets the whole file."""

import re
from collections.abc import Mapping

from control.core.api.errors import ApiError

_ONE_RANGE = re.compile(r"bytes=([0-9]{0,15})-([0-9]{0,15})")


def requested_range(headers: Mapping[str, str], *, size_bytes: int, etag: str) -> range | None:
    """Returns the positions of the requested bytes.

    Returns None if the whole file must be sent, for example because `If-Range` does not match.

    Raises: ApiError: 416, the range begins after the end of the file.
    """
    requested = _ONE_RANGE.fullmatch(headers.get("Range", "").replace(" ", ""))
    if requested is None or requested.groups() == ("", "") or headers.get("If-Range", etag) != etag:
        return None
    first, last = requested.groups()
    if not first:  # "bytes=-N" requests the last N bytes
        positions = range(max(0, size_bytes - int(last)), size_bytes)
    else:
        positions = range(int(first), min(int(last) + 1, size_bytes) if last else size_bytes)
        if last and int(last) < int(first):
            return None  # an invalid range is ignored
    if not positions:
        message = f"The file has {size_bytes:,} bytes; the range {headers['Range'][:40]!a} contains none of them."
        raise ApiError(416, message, "range_not_satisfiable", headers={"Content-Range": f"bytes */{size_bytes}"})
    return positions
