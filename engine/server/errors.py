"""Errors of the server. For errors in a client's request see `engine.fields.InvalidRequest`.

ServerFault
├── Overloaded        429, too many requests are waiting
├── Unauthorized      401
├── Draining          503, the process is stopping
├── Asleep            503, an operator has put the engine to sleep
├── EngineBroken      503, the engine can't process requests any more
└── GenerationFailed  500, this one request failed in the engine
"""

from collections.abc import Mapping
from typing import Any

from starlette.responses import JSONResponse

from engine.openai.messages_api.errors import message_error
from engine.openai.responses import error_body

MESSAGES_PATH = "/v1/messages"
COUNT_TOKENS_PATH = "/v1/messages/count_tokens"
_ANTHROPICS = (MESSAGES_PATH, COUNT_TOKENS_PATH)  # paths whose errors have Anthropic's shape


class ServerFault(Exception):
    status = 500
    kind = "server_error"
    code = "internal_error"
    retry_after_seconds: int | None = None  # if set, the same request may succeed later

    def __init__(self, message: str, *, retry_after_seconds: int | None = None) -> None:
        super().__init__(message)
        self.message = message
        if retry_after_seconds is not None:
            self.retry_after_seconds = retry_after_seconds

    def body(self) -> dict[str, Any]:
        return error_body(self.message, kind=self.kind, code=self.code)

    def headers(self) -> dict[str, str]:
        return {} if self.retry_after_seconds is None else {"retry-after": str(self.retry_after_seconds)}


class Overloaded(ServerFault):
    status = 429
    kind = "rate_limit_error"
    code = "engine_overloaded"
    retry_after_seconds = 1


class Unauthorized(ServerFault):
    status = 401
    kind = "authentication_error"
    code = "invalid_api_key"


class Draining(ServerFault):
    status = 503
    code = "server_draining"
    retry_after_seconds = 1


class Asleep(ServerFault):
    status = 503
    code = "engine_asleep"
    retry_after_seconds = 1


class EngineBroken(ServerFault):
    status = 503
    code = "engine_unavailable"
    retry_after_seconds = 5


class GenerationFailed(ServerFault):
    code = "generation_failed"

    def __init__(self, message: str, *, code: str = "generation_failed") -> None:
        super().__init__(message)
        self.code = code


def error_response(
    path: str, body: dict[str, Any], *, status: int, headers: Mapping[str, str] | None = None
) -> JSONResponse:
    """Returns the response to a request for `path`. `body`: the error in OpenAI's shape."""
    content = message_error(body["error"], status=status) if path in _ANTHROPICS else body
    return JSONResponse(content, status_code=status, headers=headers)
