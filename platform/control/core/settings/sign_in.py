"""Settings of django-allauth, with which members of organizations sign in, and of the mails and the cache it uses.

Staff sign in through Django's own form, see `two_factor`.
"""

from typing import Any
from urllib.parse import unquote, urlsplit

from django.core.exceptions import ImproperlyConfigured

from control.core.settings.config import Config

OIDC_ID = "sso"  # in the URLs of the provider

AUTHENTICATION_BACKENDS = [
    "django.contrib.auth.backends.ModelBackend",
    "allauth.account.auth_backends.AuthenticationBackend",
]
ACCOUNT_ADAPTER = "control.operations.sign_in.adapters.AccountAdapter"
SOCIALACCOUNT_ADAPTER = "control.operations.sign_in.adapters.ProviderAdapter"
MFA_ADAPTER = "control.operations.sign_in.adapters.SecondFactorAdapter"
ACCOUNT_FORMS = {
    "login": "control.operations.sign_in.forms.SignInForm",
    "reset_password": "control.operations.sign_in.forms.ResetPasswordForm",
}
ACCOUNT_LOGIN_METHODS = {"username"}  # a member's user name is the e-mail address
ACCOUNT_EMAIL_VERIFICATION = "none"  # the link of the invitation has proved the address
ACCOUNT_EMAIL_UNKNOWN_ACCOUNTS = False  # strangers get no mail
ACCOUNT_EMAIL_NOTIFICATIONS = True  # mails about a new password or a new second factor
ACCOUNT_SESSION_REMEMBER = False
MFA_SUPPORTED_TYPES = ["totp", "recovery_codes"]
MFA_TOTP_ISSUER = "Slipstream"
EMAIL_TIMEOUT = 10


def mail_settings(config: Config) -> dict[str, Any]:
    """Returns Django's settings for mails. Raises: ImproperlyConfigured: the scheme of `smtp_url` is unknown."""
    if config.smtp_url is None:
        backend = "django.core.mail.backends.console.EmailBackend"
        return {"EMAIL_BACKEND": backend, "DEFAULT_FROM_EMAIL": config.mail_from}
    url = urlsplit(config.smtp_url.get_secret_value())
    if url.scheme not in ("smtp", "smtps", "smtp+starttls"):
        raise ImproperlyConfigured("SLIPSTREAM_SMTP_URL must begin with smtp://, smtps:// or smtp+starttls://")
    return {
        "EMAIL_BACKEND": "django.core.mail.backends.smtp.EmailBackend",
        "DEFAULT_FROM_EMAIL": config.mail_from,
        "EMAIL_HOST": url.hostname or "localhost",
        "EMAIL_PORT": url.port or {"smtp": 25, "smtps": 465, "smtp+starttls": 587}[url.scheme],
        "EMAIL_HOST_USER": unquote(url.username or ""),
        "EMAIL_HOST_PASSWORD": unquote(url.password or ""),
        "EMAIL_USE_SSL": url.scheme == "smtps",
        "EMAIL_USE_TLS": url.scheme == "smtp+starttls",
    }


def cache_settings(config: Config) -> dict[str, Any]:
    """Returns Django's CACHES. The cache counts attempts to sign in; with Redis, all processes share the counts."""
    if config.redis_url is None:
        return {"default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}}
    redis = "django.core.cache.backends.redis.RedisCache"
    url = config.redis_url.get_secret_value()
    return {"default": {"BACKEND": redis, "LOCATION": url, "KEY_PREFIX": "slipstream"}}


def oidc_settings(config: Config) -> dict[str, Any]:
    """Returns allauth's setting SOCIALACCOUNT_PROVIDERS."""
    if config.oidc_issuer is None:
        return {}
    app = {
        "provider_id": OIDC_ID,
        "name": config.oidc_name,
        "client_id": config.oidc_client_id,
        "secret": config.oidc_client_secret.get_secret_value(),
        "settings": {"server_url": config.oidc_issuer},
    }
    return {"openid_connect": {"OAUTH_PKCE_ENABLED": True, "APPS": [app]}}
