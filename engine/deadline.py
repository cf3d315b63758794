"""Ends Python code that computes for too long, by an asynchronous exception in its own thread.

It is meant for a customer's program, such as a chat template: how long it computes cannot be known before, and it
shares its process with the server. A single call into C is not interrupted before it returns.
"""

import ctypes
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class TooSlow(Exception):
    """The time was up."""


@contextmanager
def deadline(seconds: float) -> Iterator[None]:
    """Limits how long the `with` block may compute.

    The exception is sent at most once, and only while the block is open: `lock` is held while the timer starts and
    while the block is closed, and the timer needs it to send the exception. Python code of others, such as the locks
    inside `threading.Timer`, therefore never runs while an exception may arrive, unless the block itself calls it.

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
            ctypes.pythonapi.PyThreadState_SetAsyncExc(thread_id, None)  # takes back an exception still on its way
        timer.cancel()
