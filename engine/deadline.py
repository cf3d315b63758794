"""Stops Python code that runs for too long, by raising an asynchronous exception in the thread that runs it.

The module is meant for customers' code, such as chat templates, which runs in the server's process and whose running
time is unknown. A single call into C is not interrupted before it returns.
"""

import ctypes
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class TooSlow(Exception):
    """The block did not finish within its time limit."""


@contextmanager
def deadline(seconds: float) -> Iterator[None]:
    """Limits how long the `with` block may run.

    The exception is sent at most once, and only while the block is open: the timer needs `lock` to send the exception,
    and this function holds `lock` while it starts the timer and while it closes the block. Python code outside the
    block, such as the locks inside `threading.Timer`, therefore never receives the exception, unless the block itself
    calls that code.

    Raises: TooSlow: from the line that the block has reached, or from the `with` statement itself.
    """
    thread_id = ctypes.c_ulong(threading.get_ident())
    lock = threading.Lock()
    is_open = True

    def end() -> None:
        with lock:
            if is_open:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(thread_id, ctypes.py_object(TooSlow))

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    with lock:
        timer.start()
    try:
        yield
    finally:
        with lock:
            is_open = False
            ctypes.pythonapi.PyThreadState_SetAsyncExc(thread_id, None)  # discards an exception not yet raised
        timer.cancel()
