"""Settings that all installations share. `embedded` and `production` add their own."""

from pathlib import Path

import structlog

from control.core.settings.config import Config, database_settings
from control.core.settings.sign_in import *  # noqa: F403
from control.core.settings.sign_in import cache_settings, mail_settings, oidc_settings
from control.core.settings.spectacular import SPECTACULAR as SPECTACULAR_SETTINGS  # noqa: F401  # a Django setting
from control.core.settings.unfold import UNFOLD as UNFOLD

SLIPSTREAM = Config()

DEBUG = False
ALLOWED_HOSTS = [host.strip() for host in SLIPSTREAM.allowed_hosts.split(",") if host.strip()]
SECRET_KEY_FALLBACKS = [key for key in SLIPSTREAM.secret_key_fallbacks.get_secret_value().split(",") if key]
ROOT_URLCONF = "control.urls"
ASGI_APPLICATION = "control.asgi.application"
USE_TZ = True
TIME_ZONE = "UTC"
LANGUAGE_CODE = "en-us"
FORMAT_MODULE_PATH = "control.core.settings.formats"
LOGIN_REDIRECT_URL = "admin:index"
LOGIN_URL = "account_login"

# An app is a folder two levels below `control` that has tables, management commands or code to run at start-up.
_CONTROL = Path(__file__).resolve().parents[2]
OWN_APPS = sorted(
    {
        f"control.{path.parts[-3]}.{path.parts[-2]}"
        for name in ("models.py", "apps.py", "management")
        for path in _CONTROL.glob(f"*/*/{name}")
    }
)

INSTALLED_APPS = [
    "unfold",  # before django.contrib.admin, whose templates it replaces
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "rest_framework",
    "drf_spectacular",
    "drf_spectacular_sidecar",  # the files of Swagger UI
    *OWN_APPS,
    "allauth",  # after our apps, whose templates replace those of allauth
    "allauth.account",
    "allauth.mfa",
    "allauth.socialaccount",
    "allauth.socialaccount.providers.openid_connect",
]
AUTH_USER_MODEL = "accounts.User"
STAFF_TWO_FACTOR = False  # `two_factor` sets it to True
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "django.contrib.auth.password_validation.MinimumLengthValidator", "OPTIONS": {"min_length": 12}},
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
]

MIDDLEWARE = [
    "control.operations.monitoring.probes.probes_middleware",  # first: probes use neither the host name nor TLS
    "control.core.api.request_id.RequestIdMiddleware",  # before the others, whose error responses need the id too
    "control.core.observability.requests.RequestsMiddleware",
    "control.tenants.row_security.middleware.TenancyMiddleware",
    "control.tenants.audit.middleware.AuditMiddleware",
    "control.tenants.authentication.rate_limits.RateLimitMiddleware",
    "control.core.api.outage.OutageMiddleware",
    "control.core.api.content_security_policy.content_security_policy_middleware",
    "django.middleware.security.SecurityMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "allauth.account.middleware.AccountMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]

DATABASES = {"default": database_settings(SLIPSTREAM)}
CACHES = cache_settings(SLIPSTREAM)
SOCIALACCOUNT_PROVIDERS = oidc_settings(SLIPSTREAM)
vars().update(mail_settings(SLIPSTREAM))
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

STATIC_URL = "/static/"
WHITENOISE_USE_FINDERS = True  # serves the console's few files from the packages, without collectstatic

DATA_UPLOAD_MAX_MEMORY_SIZE = SLIPSTREAM.max_body_bytes

REST_FRAMEWORK = {
    "DEFAULT_AUTHENTICATION_CLASSES": ["control.tenants.authentication.api_keys.ApiKeyAuthentication"],
    "DEFAULT_PERMISSION_CLASSES": ["control.tenants.authentication.api_keys.HasApiKey"],
    "DEFAULT_PARSER_CLASSES": ["control.core.api.json_body.StrictJsonParser"],
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
    "DEFAULT_CONTENT_NEGOTIATION_CLASS": "control.core.api.negotiation.AlwaysJson",
    "EXCEPTION_HANDLER": "control.core.api.errors.exception_handler",
    "DEFAULT_SCHEMA_CLASS": "control.operations.openapi.schema.OperationSchema",
    "UNAUTHENTICATED_USER": None,
}

_SHARED_PROCESSORS: list[structlog.typing.Processor] = [
    structlog.contextvars.merge_contextvars,  # request_id
    structlog.stdlib.add_logger_name,
    structlog.stdlib.add_log_level,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
]
structlog.configure(
    processors=[*_SHARED_PROCESSORS, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
    logger_factory=structlog.stdlib.LoggerFactory(),
    wrapper_class=structlog.stdlib.BoundLogger,
)


LOGS_ARE_JSON = False  # True in production; a child process uses its supervisor's format


def logging_settings(renderer: structlog.typing.Processor) -> dict[str, object]:
    """Returns Django's LOGGING: one line on standard error per log event, of libraries and of this project."""
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {
            "line": {
                "()": structlog.stdlib.ProcessorFormatter,
                "foreign_pre_chain": _SHARED_PROCESSORS,
                "processors": [
                    structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                    structlog.processors.format_exc_info,
                    renderer,
                ],
            }
        },
        "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "line"}},
        "root": {"handlers": ["stderr"], "level": SLIPSTREAM.log_level},
        "loggers": {
            "django": {"handlers": [], "propagate": True, "level": SLIPSTREAM.log_level},
            "django.request": {"level": "ERROR"},  # RequestsMiddleware logs refused requests
            "uvicorn": {"handlers": [], "propagate": True, "level": SLIPSTREAM.log_level},
            "uvicorn.access": {"handlers": [], "propagate": False},  # RequestsMiddleware logs requests
        },
    }
