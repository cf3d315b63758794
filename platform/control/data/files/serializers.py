"""Checks the `expires_after` of batches, until the request of a batch is a pydantic model too."""

import datetime as dt
from typing import Any

from control.core.api.errors import ApiError
from control.core.api.requests import parse_request
from control.data.files.schemas import ExpiresAfter


def expires_after(data: dict[str, Any] | None, *, param: str) -> dt.timedelta | None:
    """Raises: ApiError: 400."""
    if data is None:
        return None
    try:
        return parse_request(ExpiresAfter, data).delta
    except ApiError as error:
        raise ApiError(400, f"{param}.{error.message}", error.code, f"{param}.{error.param}") from None
