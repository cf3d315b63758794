"""Limits the requests of one organization that are in progress, because each holds sockets and memory until it ends."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from control.core.api.errors import ApiError
from control.core.settings.config import get_config

RETRY_AFTER_SECONDS = 1
MAX_LARGEST_BODIES = 16  # limit for all bodies of an organization together: the bytes of 16 bodies of maximum size


class OpenRequests:
    """Counts the open requests of this process. Call it from the event loop only, because it has no lock."""

    def __init__(self) -> None:
        self._num_open: Counter[str] = Counter()
        self._num_arriving: Counter[str] = Counter()
        self._num_bytes: Counter[str] = Counter()

    @contextmanager
    def one_more(self, organization_id: str) -> Iterator[None]:
        """Counts a request within the block. Raises: ApiError: 429."""
        limit = get_config().max_open_completions
        message = (
            f"Your organization has {limit:,} requests to models in progress, which is its limit. "
            "Try again when one of them has ended."
        )
        with _counted(self._num_open, organization_id, limit, message):
            yield

    @contextmanager
    def one_more_arriving(self, organization_id: str) -> Iterator[None]:
        """Counts a request whose body has not arrived completely. Raises: ApiError: 429."""
        limit = get_config().max_open_completions
        message = f"Your organization is sending {limit:,} requests to models already, which is its limit. Try again."
        with _counted(self._num_arriving, organization_id, limit, message):
            yield

    @contextmanager
    def held_bytes(self, organization_id: str) -> Iterator[Callable[[int], None]]:
        """Yields a function that adds to the organization's held bytes and can raise ApiError: 429.

        The bytes are subtracted again at the end of the block.
        """
        num_bytes = 0

        def add(more: int) -> None:
            nonlocal num_bytes
            limit = MAX_LARGEST_BODIES * get_config().max_body_bytes
            if self._num_bytes[organization_id] + more > limit:
                message = f"Your organization's requests that wait for an answer have more than {limit:,} bytes."
                raise _refusal(message, "too_many_body_bytes")
            self._num_bytes[organization_id] += more
            num_bytes += more

        try:
            yield add
        finally:
            _subtract(self._num_bytes, organization_id, num_bytes)


@contextmanager
def _counted(numbers: Counter[str], organization_id: str, limit: int, message: str) -> Iterator[None]:
    if numbers[organization_id] >= limit:
        raise _refusal(message, "too_many_streams")
    numbers[organization_id] += 1
    try:
        yield
    finally:
        _subtract(numbers, organization_id, 1)


def _subtract(numbers: Counter[str], organization_id: str, number: int) -> None:
    numbers[organization_id] -= number
    if not numbers[organization_id]:
        del numbers[organization_id]


def _refusal(message: str, code: str) -> ApiError:
    return ApiError(429, message, code, headers={"Retry-After": str(RETRY_AFTER_SECONDS)})
