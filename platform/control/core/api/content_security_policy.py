"""Sends a Content-Security-Policy with every HTML page: the browser loads scripts, styles and data from here only.

Inline scripts are forbidden. The console's theme needs two exceptions: its Alpine.js evaluates expressions in the
attributes of pages, for which `unsafe-eval` is required, and its pages set inline styles.
"""

from collections.abc import Callable
from urllib.parse import urlsplit

from django.http import HttpRequest
from django.http.response import HttpResponseBase

from control.core.settings.config import get_config

_POLICY = "; ".join(
    (
        "default-src 'self'",
        "script-src 'self' 'unsafe-eval'",
        "style-src 'self' 'unsafe-inline'",
        "img-src 'self' data:",
        "object-src 'none'",
        "base-uri 'self'",
        "form-action 'self'{form_targets}",
        "frame-ancestors 'none'",
    )
)


def policy() -> str:
    """Returns the header's value.

    `form-action` includes the OpenID Connect provider: the response to the sign-in form is a redirect to the provider,
    and browsers apply `form-action` to redirects as well.
    """
    issuer = urlsplit(get_config().oidc_issuer or "")
    return _POLICY.format(form_targets=f" {issuer.scheme}://{issuer.netloc}" if issuer.netloc else "")


def content_security_policy_middleware(
    get_response: Callable[[HttpRequest], HttpResponseBase],
) -> Callable[[HttpRequest], HttpResponseBase]:
    def middleware(request: HttpRequest) -> HttpResponseBase:
        response = get_response(request)
        if response.headers.get("Content-Type", "").startswith("text/html"):
            response.headers.setdefault("Content-Security-Policy", policy())
        return response

    return middleware
