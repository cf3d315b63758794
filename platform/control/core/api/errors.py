"""Every error response has OpenAI's format: {"error": {"message", "type", "param", "code"}}.

ApiError                  raised by services, selectors and views; has its own status
database not reachable    503: the client should send the same request again
rest_framework's errors   authentication, parsing, 405, 415: translated by `exception_handler`
any other exception       500 without the cause, which is logged with the request's id
"""

import structlog
from django.core.exceptions import PermissionDenied, RequestDataTooBig, SuspiciousOperation
from django.db import InterfaceError, OperationalError
from django.http import Http404, JsonResponse
from rest_framework import exceptions
from rest_framework.response import Response

log = structlog.get_logger(__name__)

_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}


class ApiError(Exception):
    """Refuses a request.

    `code` never changes and is meant for programs, `message` is meant for people, `param` names the invalid field.
    OpenAI's clients and this project's clients retry a 409 by themselves. A 409 without `Retry-After` would be refused
    again, so its header `x-should-retry` tells the clients not to retry.
    """

    def __init__(
        self,
        status: int,
        message: str,
        code: str | None = None,
        param: str | None = None,
        type: str | None = None,  # noqa: A002  # the JSON key
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code
        self.param = param
        self.type = type or _TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")
        self.headers = dict(headers or {})
        if status == 409 and "Retry-After" not in self.headers:
            self.headers.setdefault("x-should-retry", "false")

    def body(self) -> dict[str, dict[str, str | None]]:
        return {"error": {"message": self.message, "type": self.type, "param": self.param, "code": self.code}}


def over_limit(message: str, code: str, *, retry_after_seconds: int | None = None) -> ApiError:
    """Returns a 429 that tells clients not to retry by themselves: a quick retry would reach the limit again."""
    headers = {"x-should-retry": "false"}
    if retry_after_seconds is not None:
        headers["Retry-After"] = str(retry_after_seconds)
    return ApiError(429, message, code, type="insufficient_quota", headers=headers)


def error_response(error: ApiError) -> JsonResponse:
    """Builds the response for views that do not use rest_framework, such as those of the gateway."""
    return JsonResponse(error.body(), status=error.status, headers=error.headers)


def server_error() -> ApiError:
    return ApiError(500, "The server had an error while processing your request.", "internal_error")


def database_unavailable() -> ApiError:
    message = "The service cannot reach its database at the moment. Nothing was done; try again."
    return ApiError(503, message, "database_unavailable", headers={"Retry-After": "1"})


def exception_handler(error: Exception, context: dict[str, object]) -> Response:
    """rest_framework's EXCEPTION_HANDLER."""
    translated = _translate(error)
    if translated.status >= 500 and not isinstance(error, ApiError):
        log.exception("request failed", exc_info=error)
    return Response(translated.body(), status=translated.status, headers=translated.headers)


def _translate(error: Exception) -> ApiError:
    match error:
        case ApiError():
            return error
        case exceptions.AuthenticationFailed() | exceptions.NotAuthenticated():
            return ApiError(401, str(error.detail), "invalid_api_key", headers={"WWW-Authenticate": "Bearer"})
        case exceptions.MethodNotAllowed():
            return ApiError(405, str(error.detail), "method_not_allowed")
        case exceptions.APIException():
            return ApiError(error.status_code, str(error.detail), str(error.get_codes()))
        case OperationalError() | InterfaceError():
            return database_unavailable()
        case Http404():
            return ApiError(404, "Not found.", "not_found")
        case RequestDataTooBig():
            return ApiError(413, "The request body is too large.", "request_too_large")
        case SuspiciousOperation():  # such as too many fields or files in one form
            return ApiError(400, "The request could not be understood.", "invalid_request")
        case PermissionDenied():
            return ApiError(403, "You may not do this.", "permission_denied")
        case _:
            return server_error()
