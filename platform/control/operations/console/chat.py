"""The chat on a deployment's page: chat completions for members who have signed in, without an API key.

    browser ─ session, CSRF token ─ the gateway ─ like any request to /v1/chat/completions

The gateway applies the same limits and caps, and records the usage for the organization, without a key and a project.
It runs `member_key` without Django's middleware, so this function reads the session and checks the CSRF token itself.
"""

from django.contrib.auth.middleware import AuthenticationMiddleware
from django.contrib.sessions.middleware import SessionMiddleware
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.views.decorators.csrf import csrf_exempt
from rest_framework.authentication import CSRFCheck

from control.core.api.errors import ApiError
from control.operations.console.visitors import lacks_second_factor, member_of
from control.serving.gateway.serving import Entrance, serve
from control.serving.gateway.views import InDjango
from control.tenants.accounts.keys import KEY_META
from control.tenants.accounts.models import ApiKey
from control.tenants.accounts.scopes import INFERENCE
from control.tenants.authentication.api_keys import enter_organization
from control.tenants.authentication.rate_limits import request_count

CHAT_PATH = "/admin/chat/completions"
ORGANIZATION_HEADER = "X-Organization"  # the id of the organization whose page sends the message


def member_key(request: HttpRequest) -> ApiKey:
    """Returns a key that is not stored, with the organization of the member who has signed in and the member's role.

    Raises: ApiError: 401, nobody has signed in; 403; 409, another organization was chosen after the page was loaded;
        415; 429.
    """
    SessionMiddleware(_no_view).process_request(request)
    _check_origin(request)
    AuthenticationMiddleware(_no_view).process_request(request)
    member = member_of(request)
    if member is None and not request.user.is_authenticated:
        raise ApiError(401, "You are signed out. Reload the page to sign in.", "not_signed_in")
    if member is None:
        raise ApiError(403, "Only members of an organization can use the chat.", "not_a_member")
    # The message names a model only, and the other organization may have a deployment with the same name.
    if request.headers.get(ORGANIZATION_HEADER, member.organization_id) != member.organization_id:
        message = f"You have chosen the organization {member.organization.name} since this page was loaded. Reload it."
        raise ApiError(409, message, "organization_changed")
    if lacks_second_factor(request, member):
        message = f"{member.organization.name} requires a second factor. Reload the page to set it up."
        raise ApiError(403, message, "second_factor_required")
    if member.organization.deletion_requested_at is not None:
        raise ApiError(403, "The deletion of your organization has been requested.", "organization_leaving")
    key = ApiKey(id="", organization=member.organization, member=member, name="Console", scopes=[INFERENCE])
    enter_organization(key)
    request.META[KEY_META] = key
    request_count(request, key.organization)
    return key


def _check_origin(request: HttpRequest) -> None:
    """Refuses requests that a page of another site could send. Raises: ApiError: 403, 415."""
    if request.content_type != "application/json":  # checked first, because Django would read a form for its token
        raise ApiError(415, "The request body must be JSON.", "unsupported_media_type")
    check = CSRFCheck(_no_view)
    check.process_request(request)
    if check.process_view(request, _no_view, (), {}) is not None:
        raise ApiError(403, "The CSRF token is missing or wrong. Reload the page.", "csrf_failed")


def _no_view(request: HttpRequest) -> HttpResponseBase:
    raise AssertionError("only the methods for requests of the middleware are called")


ENTRANCE = Entrance(path="/v1/chat/completions", read_key=member_key)


@csrf_exempt
async def chat_completions(request: HttpRequest) -> HttpResponseBase:
    """Serves the chat under Django's own handlers, like `gateway.views.generate`. `member_key` checks the token."""
    return await serve(request, InDjango(request), ENTRANCE)
