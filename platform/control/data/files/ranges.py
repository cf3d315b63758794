"""Parts of a file's content, as RFC 9110 has them: one range of bytes a request; more than one get the whole."""

import re
from collections.abc import Mapping

from control.core.api.errors import ApiError

_ONE_RANGE = re.compile(r"bytes=([0-9]{0,15})-([0-9]{0,15})")


def requested_range(headers: Mapping[str, str], *, size_bytes: int, etag: str) -> range | None:
    """Positions of the bytes that are asked for; None: all of them, also if `If-Range` names other content.

    Raises: ApiError: 416, the range begins behind the end.
    """
    asked = _ONE_RANGE.fullmatch(headers.get("Range", "").replace(" ", ""))
    if asked is None or asked.groups() == ("", "") or headers.get("If-Range", etag) != etag:
        return None
    first, last = asked.groups()
    if not first:  # so many bytes from the end
        found = range(max(0, size_bytes - int(last)), size_bytes)
    else:
        found = range(int(first), min(int(last) + 1, size_bytes) if last else size_bytes)
        if last and int(last) < int(first):
            return None  # no range at all
    if not found:
        message = f"The file has {size_bytes:,} bytes; the range {headers['Range'][:40]!a} holds none of them."
        raise ApiError(416, message, "range_not_satisfiable", headers={"Content-Range": f"bytes */{size_bytes}"})
    return found
