"""The API in a process that dies between commit and response if the request has the header DIE_HEADER."""

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
