"""Authenticates a request in a thread that may use the database."""

from collections.abc import Awaitable, Callable
from typing import Any

from django.http import HttpRequest

from control.tenants.accounts.keys import KEY_META
from control.tenants.accounts.models import ApiKey
from control.tenants.authentication.api_keys import authenticate_request, enter_organization, require_scope


async def authenticate(
    request: HttpRequest,
    scope: str,
    call: Callable[..., Awaitable[Any]],
    read_key: Callable[[HttpRequest], ApiKey] = authenticate_request,
) -> ApiKey:
    """Authenticates a request and sets its organization as the tenant of the current context.

    Args:
        call: calls a function with its arguments in a thread that may use the database.
        read_key: returns the key of the request and stores it in `request.META`.
    Raises: ApiError: 401, 403 or 429.
    """

    def read_granted_key() -> ApiKey:
        key = read_key(request)
        require_scope(key, scope, str(request.method))
        return key

    try:
        key: ApiKey = await call(read_granted_key)
    finally:
        # `read_granted_key` has set the tenant in a copy of this context only. Refused requests need it here, too.
        if found := request.META.get(KEY_META):
            enter_organization(found)
    return key
