"""Copies files from storage in threads of its own, so that slow copies delay neither health checks nor other tenants.

At most `NUM_THREADS` copies run at once, and at most `MAX_PER_ORGANIZATION` of one organization. A free thread takes
the organization with the fewest running copies. If several have equally few, it takes the one that has waited longest.
Of the chosen organization's copies, the thread runs the oldest.
"""

import threading
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

NUM_THREADS = 8
MAX_PER_ORGANIZATION = 2

Copy = Callable[[], Path | None]


@dataclass(slots=True)
class StagingPool:
    _threads: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(max_workers=NUM_THREADS, thread_name_prefix="staging")
    )
    _lock: threading.Lock = field(default_factory=threading.Lock)
    # An organization moves to the end of this dictionary whenever one of its copies starts.
    _waiting: dict[str, deque[tuple[Copy, "Future[Path | None]"]]] = field(default_factory=dict)
    _num_running: Counter[str] = field(default_factory=Counter)

    def submit(self, organization_id: str, copy: Copy) -> "Future[Path | None]":
        future: Future[Path | None] = Future()
        with self._lock:
            self._waiting.setdefault(organization_id, deque()).append((copy, future))
            self._start_waiting()
        return future

    def shutdown(self) -> None:
        with self._lock:
            self._waiting.clear()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _start_waiting(self) -> None:
        """Starts waiting copies as long as threads are free. The caller must hold the lock."""
        while self._num_running.total() < NUM_THREADS:
            eligible = [name for name in self._waiting if self._num_running[name] < MAX_PER_ORGANIZATION]
            if not eligible:
                return
            organization_id = min(eligible, key=lambda name: self._num_running[name])
            copies = self._waiting.pop(organization_id)
            copy, future = copies.popleft()
            if copies:
                self._waiting[organization_id] = copies
            if future.set_running_or_notify_cancel():
                self._num_running[organization_id] += 1
                self._threads.submit(self._run, organization_id, copy, future)

    def _run(self, organization_id: str, copy: Copy, future: "Future[Path | None]") -> None:
        try:
            future.set_result(copy())
        except Exception as error:  # boundary: the caller gets the error from the future
            future.set_exception(error)
        finally:
            with self._lock:
                self._num_running[organization_id] -= 1
                self._start_waiting()
