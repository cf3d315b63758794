"""The API in a process that can be told to die after its commit, so that the caller gets no response."""

import os
import signal
from typing import Any

from control.asgi import application as control_application

DIE_HEADER = b"x-die-before-answering"


async def application(scope: Any, receive: Any, send: Any) -> None:
    async def dying(message: Any) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    is_doomed = scope["type"] == "http" and DIE_HEADER in dict(scope["headers"])
    await control_application(scope, receive, dying if is_doomed else send)
