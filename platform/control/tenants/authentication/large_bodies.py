"""Authenticates the caller of a request with a large body, before the body is read (`core.api.body_limit`).

The view authenticates the request again, because a key may be revoked while its body arrives.
"""

from collections.abc import MutableMapping
from typing import Any

from django.conf import settings
from django.contrib.auth import SESSION_KEY
from django.contrib.sessions.backends.db import SessionStore
from django.db import InterfaceError, OperationalError
from django.http.cookie import parse_cookie

from control.core.api.errors import ApiError, database_unavailable
from control.tenants.authentication.api_keys import key_of


def caller_check(scope: MutableMapping[str, Any]) -> None:
    """Accepts a valid API key or, for the console, the session of a user who has signed in.

    Raises: ApiError: 401; 503, the database cannot be reached.
    """
    headers = {name: value.decode("latin1") for name, value in scope["headers"]}
    try:
        if not scope["path"].startswith("/admin/"):
            key_of(headers.get(b"authorization", ""), headers.get(b"x-api-key", ""))
        elif not _is_signed_in(headers.get(b"cookie", "")):
            raise ApiError(401, "Sign in before you upload a file.", "not_signed_in")
    except (OperationalError, InterfaceError) as error:
        raise database_unavailable() from error


def _is_signed_in(cookies: str) -> bool:
    session = parse_cookie(cookies).get(settings.SESSION_COOKIE_NAME)
    return session is not None and SESSION_KEY in SessionStore(session)
