"""The ASGI application that uvicorn serves.

the routes to an endpoint    the gateway, which holds no thread while an engine answers
the console's chat           the gateway as well
/v1/events as a stream       the feed, which holds no thread either
everything else              Django: API and console, behind a limit on the size of request bodies
"""

import os
import sys
from typing import Any

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "control.core.settings.embedded")

import django
from django.core.handlers.asgi import ASGIHandler

from control.core.api.body_limit import BodyLimit
from control.core.database_threads import DatabaseThreads
from control.core.settings.config import get_config
from workers.parent_death import hide_memory_and_environment

hide_memory_and_environment()
django.setup(set_prefix=False)

from control.core.processes.files import raise_file_limit  # noqa: E402  # needs the apps
from control.operations.console.chat import CHAT_PATH, ENTRANCE  # noqa: E402  # needs the apps
from control.serving.gateway.application import Gateway  # noqa: E402  # needs the apps
from control.tenants.authentication.large_bodies import caller_check  # noqa: E402  # needs the apps
from control.tenants.events.feed import Feed, is_feed  # noqa: E402  # needs the apps

# After this time, a thread that computes hands the interpreter's lock to another thread. With Python's default of 5
# ms, threads that read customers' files delayed each step of the event loop by up to 19 ms (95th percentile, busy
# machine); with this value, by 0.2 ms.
SWITCH_SECONDS = 0.0005
DATABASE_THREADS = 8  # database connections that the gateway, the feed and the authentication of large bodies share


class _Django(ASGIHandler):
    """Adds Content-Length to a request with a chunked body: without this header Django takes the body to be empty."""

    def create_request(self, scope: Any, body_file: Any) -> Any:
        if not any(name == b"content-length" for name, _ in scope["headers"]):
            body_file.seek(0, os.SEEK_END)
            length = (b"content-length", str(body_file.tell()).encode())
            body_file.seek(0)
            scope = {**scope, "headers": [*scope["headers"], length]}
        return super().create_request(scope, body_file)


class _Application:
    def __init__(self) -> None:
        self._threads = DatabaseThreads(DATABASE_THREADS)
        self._gateway, self._feed = Gateway(self._threads, {CHAT_PATH: ENTRANCE}), Feed(self._threads)
        self._django = BodyLimit(_Django(), get_config(), self._check_caller)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["type"] == "http" and self._gateway.serves(scope["path"]):
            await self._gateway(scope, receive, send)
        elif scope["type"] == "http" and is_feed(scope):
            await self._feed(scope, receive, send)
        else:
            await self._django(scope, receive, send)

    async def _check_caller(self, scope: Any) -> None:
        await self._threads.run(caller_check, scope)

    async def _live(self, receive: Any, send: Any) -> None:
        """Handles the start and the end of the process. At the end, all usage that has not been written yet is
        written."""
        while (await receive())["type"] == "lifespan.startup":
            raise_file_limit()
            sys.setswitchinterval(SWITCH_SECONDS)
            await send({"type": "lifespan.startup.complete"})
        await self._gateway.close()
        await self._threads.close()
        await send({"type": "lifespan.shutdown.complete"})


application = _Application()
