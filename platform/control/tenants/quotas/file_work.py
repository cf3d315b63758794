"""Limits how many requests read or convert whole files at once. Each such request keeps a thread and a core busy.

A request works on files only while it has a slot. An organization may have few slots in each server process, and
further requests are refused, so that other organizations soon get a slot.
"""

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from control.core.api.errors import ApiError

MAX_REQUESTS = 4  # requests of one server process that work on files at once
MAX_TEXT_BYTES = 512 << 20  # limit for a file whose lines a request reads: prompts and datasets


class Slots:
    def __init__(self, num_slots: int, *, per_organization: int, wait_seconds: float) -> None:
        """Args: wait_seconds: how long a request waits for one of the `num_slots` before it is refused."""
        self._free = threading.BoundedSemaphore(num_slots)
        self._per_organization = per_organization
        self._wait_seconds = wait_seconds
        self._is_kept = ContextVar("is_kept", default=False)  # whether the current request is in a block of `kept`
        self._lock, self._num_requests = threading.Lock(), Counter[str]()  # requests that have a slot or wait for one

    @contextmanager
    def taken(self, organization_id: str) -> Iterator[None]:
        """Raises: ApiError: 429, the organization has too many such requests, or all slots stay taken."""
        if self._is_kept.get():
            yield
            return
        with self._counted(organization_id):
            if not self._free.acquire(timeout=self._wait_seconds):
                raise _busy("This server is reading the files of other requests. Try again in a moment.")
            try:
                yield
            finally:
                self._free.release()

    @contextmanager
    def kept(self, organization_id: str) -> Iterator[None]:
        """Takes a slot for the block. Each `taken` in the block uses this slot, so no later step can be refused.

        Raises: ApiError: as `taken`.
        """
        with self.taken(organization_id):
            token = self._is_kept.set(True)
            try:
                yield
            finally:
                self._is_kept.reset(token)

    @contextmanager
    def _counted(self, organization_id: str) -> Iterator[None]:
        with self._lock:
            if self._num_requests[organization_id] >= self._per_organization:
                message = f"{self._per_organization} requests of your organization are reading files already."
                raise _busy(f"{message} Try again in a moment.")
            self._num_requests[organization_id] += 1
        try:
            yield
        finally:
            with self._lock:
                self._num_requests[organization_id] -= 1
                if not self._num_requests[organization_id]:
                    del self._num_requests[organization_id]


file_work = Slots(MAX_REQUESTS, per_organization=2, wait_seconds=30.0)


def text_size_check(size_bytes: int, param: str) -> None:
    """Raises: ApiError: 413, a request may not read a file of this size."""
    if size_bytes > MAX_TEXT_BYTES:
        message = f"{param}: files of more than {MAX_TEXT_BYTES:,} bytes are not read here, got {size_bytes:,}"
        raise ApiError(413, message, "file_too_large", param)


def _busy(message: str) -> ApiError:
    return ApiError(429, message, "too_many_file_requests", headers={"Retry-After": "2"})
