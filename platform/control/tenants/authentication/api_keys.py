"""Authentication of API requests by API key. (Users with passwords can sign in to the console only.)

rest_framework loads this module while it loads its own views, so this module must not import `rest_framework.views`.
"""

import structlog
from django.http import HttpRequest
from rest_framework import authentication, permissions
from rest_framework.request import Request

from control.core.api.errors import ApiError
from control.tenants.accounts.keys import KEY_META
from control.tenants.accounts.models import ApiKey, Organization
from control.tenants.accounts.scopes import is_granted, scope_needed
from control.tenants.accounts.selectors import api_key_authenticate
from control.tenants.authentication.rate_limits import request_count
from control.tenants.row_security.scope import Across, across_tenants, set_request_tenant


def authenticate_request(request: HttpRequest) -> ApiKey:
    """Authenticates and counts a request. Raises: ApiError: 401; 429, the organization has reached its rate limit."""
    key = key_of(request.headers.get("Authorization", ""), request.headers.get("x-api-key", ""))
    enter_organization(key)
    request.META[KEY_META] = key
    request_count(request, key.organization)
    return key


def key_of(authorization: str, api_key: str = "") -> ApiKey:
    """Reads the key, its organization and the organization's limits in one query.

    Args: api_key: the header `x-api-key` of Anthropic's clients, which counts if there is no Authorization header.
    Raises: ApiError: 401.
    """
    scheme, _, token = (authorization or f"Bearer {api_key}").partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        raise ApiError(
            401,
            "You didn't provide an API key. Provide it in the header `Authorization: Bearer YOUR_KEY`.",
            "missing_api_key",
            headers={"WWW-Authenticate": "Bearer"},
        )
    with across_tenants(Across.AUTHENTICATION):
        return api_key_authenticate(token.strip())


def enter_organization(key: ApiKey) -> None:
    """Sets the tenant and project, and the organization in log lines, for the rest of the request."""
    set_request_tenant(key.organization_id, key.project_id)
    structlog.contextvars.bind_contextvars(organization_id=key.organization_id)


def require_scope(key: ApiKey, scope: str, method: str) -> None:
    """Raises: ApiError: 403, naming the scope that the key, or the role of its member, lacks."""
    needed = scope_needed(scope, method)
    if not is_granted(needed, key.granted_scopes):
        whose = "The role of this key's member" if is_granted(needed, key.scopes) else "This key"
        raise ApiError(403, f"{whose} lacks the scope {needed!r}.", "insufficient_scope")


class ApiKeyAuthentication(authentication.BaseAuthentication):
    def authenticate(self, request: Request) -> tuple[Organization, ApiKey]:
        key = authenticate_request(request._request)
        return key.organization, key

    def authenticate_header(self, request: Request) -> str:
        return "Bearer"


class HasApiKey(permissions.BasePermission):
    def has_permission(self, request: Request, view: object) -> bool:
        return isinstance(request.auth, ApiKey)
