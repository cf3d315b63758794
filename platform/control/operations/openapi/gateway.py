"""What the generator cannot see for itself: routes that are plain functions."""

from typing import Any

from pydantic.json_schema import model_json_schema

from control.core.api.operation import EVENTS
from control.operations.openapi.operations import OPERATIONS
from control.operations.openapi.own_shapes import Completion
from control.operations.openapi.schema import FAILURES

_PATHS = {
    "/v1/chat/completions": ("chat_completions", "messages"),
    "/v1/completions": ("completions", "prompt"),
}
_ERROR = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}


def add_gateway(result: dict[str, Any], **_: Any) -> dict[str, Any]:
    """The body goes to the engine as it is: OpenAI's, with what the engine's documentation adds."""
    result["components"]["schemas"]["Completion"] = model_json_schema(Completion)
    for path, (view, question) in _PATHS.items():
        operation = OPERATIONS[view, "POST"]
        body = {
            "type": "object",
            "required": ["model", question],
            "properties": {"model": {"type": "string", "description": "A deployment's name."}, question: {}},
        }
        answer = {
            "application/json": {"schema": {"$ref": "#/components/schemas/Completion"}},
            EVENTS: {"schema": {"type": "string"}},
        }
        result["paths"][path] = {
            "post": {
                "operationId": operation.id,
                "description": "Scope: `inference`.",
                "tags": [operation.id.partition(".")[0]],
                "requestBody": {"content": {"application/json": {"schema": body}}, "required": True},
                "security": [{"key": []}],
                "responses": {
                    "200": {"content": answer, "description": "With `stream`, server-sent events."},
                    **{status: {"content": _ERROR, "description": text} for status, text in FAILURES.items()},
                },
            }
        }
    return result
