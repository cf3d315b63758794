"""Limits how many requests of one organization are in progress, because each holds sockets and memory until it ends."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from control.core.api.errors import ApiError
from control.core.settings.config import get_config

RETRY_AFTER_SECONDS = 1


class OpenRequests:
    """Counts requests of this process. Call it from the event loop only, so that it needs no lock."""

    def __init__(self) -> None:
        self._num_open: Counter[str] = Counter()

    @contextmanager
    def one_more(self, organization_id: str) -> Iterator[None]:
        """Counts a request within the block. Raises: ApiError: 429."""
        limit = get_config().max_open_completions
        if self._num_open[organization_id] >= limit:
            message = (
                f"Your organization has {limit:,} requests to models in progress, which is its limit. "
                "Try again when one of them has ended."
            )
            raise ApiError(429, message, "too_many_streams", headers={"Retry-After": str(RETRY_AFTER_SECONDS)})
        self._num_open[organization_id] += 1
        try:
            yield
        finally:
            self._num_open[organization_id] -= 1
            if not self._num_open[organization_id]:
                del self._num_open[organization_id]
