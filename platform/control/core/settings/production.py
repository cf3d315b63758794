"""Settings for several machines behind TLS. The environment names PostgreSQL, Redis, S3 and the secret key."""

import structlog
from django.core.exceptions import ImproperlyConfigured

from control.core.settings.base import *  # noqa: F403
from control.core.settings.base import SLIPSTREAM, logging_settings
from control.core.settings.two_factor import *  # noqa: F403

if not SLIPSTREAM.secret_key:
    raise ImproperlyConfigured("SLIPSTREAM_SECRET_KEY must be set in production")
SECRET_KEY = SLIPSTREAM.secret_key.get_secret_value()

SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")
SECURE_SSL_REDIRECT = True
SECURE_HSTS_SECONDS = 31_536_000
SECURE_HSTS_INCLUDE_SUBDOMAINS = True
SECURE_HSTS_PRELOAD = True
SESSION_COOKIE_SECURE = True
CSRF_COOKIE_SECURE = True
LOGS_ARE_JSON = True
LOGGING = logging_settings(structlog.processors.JSONRenderer())
