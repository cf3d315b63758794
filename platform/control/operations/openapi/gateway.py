"""Adds the gateway's operations to the document: its views are plain functions, which the generator does not see."""

from collections.abc import Mapping
from typing import Any, Literal

from pydantic.json_schema import model_json_schema

from control.core.api.operation import EVENTS, Operation
from control.core.api.schemas import ResponseModel, Unix
from control.operations.openapi.schema import FAILURES, SECURITY
from control.operations.openapi.summaries import summary_of
from control.serving.gateway.wire import WIRES


class Completion(ResponseModel):
    """OpenAI's object with two more members, `seed` and `metrics.speculative_decoding`."""

    model_config = {"extra": "allow"}

    id: str
    object: str
    created: Unix
    model: str
    choices: list[Any]


class Audit(ResponseModel):
    """The verdict on a response: `equal`, `different` or `fingerprint_mismatch`."""

    model_config = {"extra": "allow"}

    object: str
    verdict: str
    system_fingerprint: str


class Response(ResponseModel):
    """OpenAI's response object with two more members, `seed` and `metrics.speculative_decoding`."""

    model_config = {"extra": "allow"}

    id: str
    object: str
    created_at: Unix
    model: str
    status: str
    output: list[Any]


class Message(ResponseModel):
    """Anthropic's message with two more members, `seed` and `metrics.speculative_decoding`."""

    model_config = {"extra": "allow"}

    id: str
    type: str
    role: str
    model: str
    content: list[Any]


class MessageTokens(ResponseModel):
    """Anthropic's object: the number of tokens that the message's prompt has."""

    input_tokens: int


class MessageError(ResponseModel):
    """Anthropic's error format. Its member `error` also has the members of our error object."""

    model_config = {"extra": "allow"}

    type: Literal["error"]
    error: dict[str, Any]


OPERATIONS: Mapping[str, Operation] = {
    "/v1/chat/completions": Operation(
        id="chat.completions.create", summary="Answer a conversation", response=Completion, also=EVENTS
    ),
    "/v1/completions": Operation(id="completions.create", summary="Complete a text", response=Completion, also=EVENTS),
    "/v1/responses": Operation(
        id="responses.create", summary="Answer in the form of OpenAI's Responses API", response=Response, also=EVENTS
    ),
    "/v1/messages": Operation(
        id="messages.create", summary="Answer in the form of Anthropic's Messages API", response=Message, also=EVENTS
    ),
    "/v1/messages/count_tokens": Operation(
        id="messages.count_tokens", summary="Count the tokens of a conversation", response=MessageTokens
    ),
    "/v1/audit": Operation(id="audits.create", summary="Check whether a model gave an answer", response=Audit),
}
_MEMBERS = {  # the required members besides `model`
    "/v1/chat/completions": ("messages",),
    "/v1/completions": ("prompt",),
    "/v1/responses": ("input",),
    "/v1/messages": ("messages", "max_tokens"),
    "/v1/messages/count_tokens": ("messages",),
    "/v1/audit": ("request", "response"),
}
_SUCCESS = {"/v1/messages/count_tokens": "The number of tokens.", "/v1/audit": "The verdict."}


def add_gateway(result: dict[str, Any], **_: Any) -> dict[str, Any]:
    """Hook of drf-spectacular. Describes the body loosely, because the gateway forwards it to the engine unchanged."""
    result["components"]["schemas"][MessageError.__name__] = model_json_schema(MessageError)
    for path, operation in OPERATIONS.items():
        error_name = MessageError.__name__ if WIRES[path].is_anthropics else "Error"
        error_schema = {"$ref": f"#/components/schemas/{error_name}"}
        error: dict[str, Any] = {"application/json": {"schema": error_schema}}
        result["components"]["schemas"][operation.response.__name__] = model_json_schema(operation.response)
        members = _MEMBERS[path]
        body = {
            "type": "object",
            "required": ["model", *members],
            "properties": {"model": {"type": "string", "description": "A deployment's name."}}
            | {member: {} for member in members},
        }
        schema = {"$ref": f"#/components/schemas/{operation.response.__name__}"}
        content: dict[str, Any] = {"application/json": {"schema": schema}}
        if operation.also == EVENTS:
            content[EVENTS] = {"schema": {"type": "string"}}
        result["paths"][path] = {
            "post": {
                "operationId": operation.id,
                "summary": summary_of(operation),
                "description": "Scope: `inference`.",
                "tags": [operation.id.partition(".")[0]],
                "requestBody": {"content": {"application/json": {"schema": body}}, "required": True},
                "security": SECURITY,
                "responses": {
                    "200": {
                        "content": content,
                        "description": _SUCCESS.get(
                            path, "With `stream`, the response is a stream of server-sent events."
                        ),
                    },
                    **{status: {"content": error, "description": text} for status, text in FAILURES.items()},
                },
            }
        }
    return result
