"""The ASGI application that uvicorn serves: API, gateway and console, behind a limit on the size of request bodies."""

import os
from typing import Any

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "control.core.settings.embedded")

import django
from django.core.handlers.asgi import ASGIHandler

from control.core.api.body_limit import BodyLimit
from control.core.settings.config import get_config
from workers.parent_death import hide_memory_and_environment

hide_memory_and_environment()
django.setup(set_prefix=False)


class _Django(ASGIHandler):
    """Adds Content-Length to a request with a chunked body: without this header Django takes the body to be empty."""

    def create_request(self, scope: Any, body_file: Any) -> Any:
        if not any(name == b"content-length" for name, _ in scope["headers"]):
            body_file.seek(0, os.SEEK_END)
            length = (b"content-length", str(body_file.tell()).encode())
            body_file.seek(0)
            scope = {**scope, "headers": [*scope["headers"], length]}
        return super().create_request(scope, body_file)


_django = _Django()
application = BodyLimit(_django, get_config())
