"""A few threads, each with a database connection, in which code on an event loop calls the database.

`sync_to_async` gives every request a thread, and so a connection, until the last byte of its response. A call of
`DatabaseThreads.run` holds a thread and its connection only until the called function returns. If all threads are busy,
a new call waits.
"""

import asyncio
import contextvars
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, ParamSpec, TypeVar

from django.db import DEFAULT_DB_ALIAS, connections

_Params = ParamSpec("_Params")
_Result = TypeVar("_Result")


class DatabaseThreads:
    """The threads start when they are needed. After `close`, the next call starts new ones."""

    def __init__(self, num_threads: int) -> None:
        self._num_threads = num_threads
        self._executor: ThreadPoolExecutor | None = None
        self._connections: list[Any] = []

    async def run(self, function: Callable[_Params, _Result], *args: _Params.args, **kwargs: _Params.kwargs) -> _Result:
        """Calls the function with a copy of the caller's context variables, such as the tenant."""
        if self._executor is None:
            self._executor = ThreadPoolExecutor(self._num_threads, "database", initializer=self._keep_connection)
        call = partial(contextvars.copy_context().run, _call, partial(function, *args, **kwargs))
        return await asyncio.get_running_loop().run_in_executor(self._executor, call)

    async def close(self) -> None:
        """Waits for calls in progress, then closes the connections."""
        if self._executor is not None:
            await asyncio.to_thread(_end, self._executor, self._connections)
            self._executor, self._connections = None, []

    def _keep_connection(self) -> None:
        """Keeps the thread's connection open between calls; by default, Django closes a connection after a request."""
        connection = connections[DEFAULT_DB_ALIAS]
        connection.settings_dict = {**connection.settings_dict, "CONN_MAX_AGE": None}
        self._connections.append(connection)


def _end(executor: ThreadPoolExecutor, opened: list[Any]) -> None:
    executor.shutdown()
    for connection in opened:
        connection.inc_thread_sharing()  # its own thread has ended
        connection.close()


def _call(function: Callable[[], _Result]) -> _Result:
    # This also makes the next query check that a connection to PostgreSQL still works.
    connections[DEFAULT_DB_ALIAS].close_if_unusable_or_obsolete()
    return function()
