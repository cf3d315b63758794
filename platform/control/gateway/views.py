"""POST /v1/chat/completions and /v1/completions: the only way to an endpoint.

    key → organization → its deployment named `model` → the engine's port, with the engine's own token

The body goes through unread but for `model`, so whatever the engine understands, the API understands. The database is
asked once, in one hop to a thread. When the caller goes away, Django cancels the view, and with it the engine's work.
"""

from asgiref.sync import sync_to_async
from django.core.exceptions import RequestDataTooBig
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase
from django.views.decorators.csrf import csrf_exempt

from control.accounts.scopes import INFERENCE
from control.api.authentication import authenticate_request, require_scope
from control.api.errors import ApiError, error_response
from control.api.json_body import is_text, parse_json
from control.api.request_id import request_id
from control.deployments.models import Deployment
from control.deployments.selectors import deployment_by_name
from control.gateway.upstream import Target, forward

RETRY_AFTER_SECONDS = 5
_ROUTED = frozenset({Deployment.State.READY, Deployment.State.DEGRADED})


@csrf_exempt
async def chat_completions(request: HttpRequest) -> HttpResponseBase:
    return await _serve(request, "/v1/chat/completions")


@csrf_exempt
async def completions(request: HttpRequest) -> HttpResponseBase:
    return await _serve(request, "/v1/completions")


async def _serve(request: HttpRequest, path: str) -> HttpResponseBase:
    try:
        if request.method != "POST":
            raise ApiError(
                405, f'Method "{request.method}" not allowed.', "method_not_allowed", headers={"Allow": "POST"}
            )
        target = await sync_to_async(_route)(request)
        answer = await forward(target, path, request.body, request_id=request_id(request))
    except ApiError as error:
        return error_response(error)
    headers = {"Content-Type": answer.content_type}
    if answer.retry_after is not None:
        headers["Retry-After"] = answer.retry_after
    if isinstance(answer.body, bytes):
        return HttpResponse(answer.body, status=answer.status, headers=headers)
    headers |= {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}  # the latter: nginx passes events on at once
    return StreamingHttpResponse(answer.body, status=answer.status, headers=headers)


def _route(request: HttpRequest) -> Target:
    """Authenticates first: a caller without a key learns nothing, not even that its body is malformed."""
    key = authenticate_request(request)
    require_scope(key, INFERENCE, str(request.method))
    deployment = deployment_by_name(key.organization, _model(request), only=key.deployment_ids)
    if deployment.state not in _ROUTED or deployment.port is None:
        raise _not_ready(deployment)
    return Target(port=deployment.port, token=deployment.token)


def _model(request: HttpRequest) -> str:
    try:
        body = parse_json(request.body)
    except RequestDataTooBig as error:
        raise ApiError(413, "The request body is too large.", "request_too_large") from error
    if not isinstance(body, dict):
        raise ApiError(400, "The request body must be a JSON object.", "invalid_json")
    model = body.get("model")
    if model is None:
        raise ApiError(400, "model: this parameter is required.", "missing_required_parameter", "model")
    if not isinstance(model, str) or not is_text(model):
        raise ApiError(400, "model must be a string.", "invalid_type", "model")
    return model


def _not_ready(deployment: Deployment) -> ApiError:
    """What is on its way is worth another try; what was stopped or gave up is not, and says so to OpenAI's client."""
    on_its_way = deployment.state == Deployment.State.PROVISIONING
    headers = {"Retry-After": str(RETRY_AFTER_SECONDS)} | ({} if on_its_way else {"x-should-retry": "false"})
    code = "deployment_not_ready" if on_its_way else f"deployment_{deployment.state}"
    message = f"The deployment {deployment.name!r} is {deployment.state}."
    return ApiError(503, message, code, headers=headers)
