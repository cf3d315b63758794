"""Views that belong to no resource: the health check and Django's error handlers."""

from django.db import connection
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.views import defaults

from control.core.api import errors
from control.core.api.errors import ApiError, error_response


def health(request: HttpRequest) -> JsonResponse:
    """Responds with 200 if the database can be reached."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")
    return JsonResponse({"status": "ok"})


def _is_console(request: HttpRequest) -> bool:
    return request.path.startswith("/admin/")


def bad_request(request: HttpRequest, exception: Exception) -> HttpResponse:
    if _is_console(request):
        return defaults.bad_request(request, exception)
    return error_response(ApiError(400, "The request could not be understood.", "invalid_request"))


def permission_denied(request: HttpRequest, exception: Exception) -> HttpResponse:
    if _is_console(request):
        return defaults.permission_denied(request, exception)
    return error_response(ApiError(403, "You may not do this.", "permission_denied"))


def not_found(request: HttpRequest, exception: Exception) -> HttpResponse:
    if _is_console(request):
        return defaults.page_not_found(request, exception)
    message = f"Unknown request URL: {request.method} {request.path}."
    if not request.path.startswith("/v1/"):
        message += " The API is below /v1, the console at /admin/."
    return error_response(ApiError(404, message, "unknown_url"))


def server_error(request: HttpRequest) -> HttpResponse:
    return defaults.server_error(request) if _is_console(request) else error_response(errors.server_error())
