"""What uvicorn serves: API, gateway and console, behind a limit on request bodies."""

import os

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "control.settings.embedded")

from django.core.asgi import get_asgi_application

from control.api.body_limit import BodyLimit
from control.settings.config import get_config

_django = get_asgi_application()
application = BodyLimit(_django, get_config())
