"""Ends Python code that computes for too long, from within its own thread.

For what a customer's program computes, such as a chat template: it can't be known before, and it shares its process
with what serves. One call into C is not interrupted before it returns.
"""

import ctypes
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class TooSlow(Exception):
    """The time was up."""


@contextmanager
def deadline(seconds: float) -> Iterator[None]:
    """Raises: TooSlow, wherever the block is by then."""
    thread_id = ctypes.c_ulong(threading.get_ident())
    is_over, lock = threading.Event(), threading.Lock()

    def end() -> None:
        with lock:
            if not is_over.is_set():
                ctypes.pythonapi.PyThreadState_SetAsyncExc(thread_id, ctypes.py_object(TooSlow))

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        with lock:  # from here on nothing is raised any more, and what was about to be is taken back
            is_over.set()
            ctypes.pythonapi.PyThreadState_SetAsyncExc(thread_id, None)
