"""POST /v1/chat/completions and /v1/completions: the only way to an endpoint.

    key → organization → its deployment named `model` → the engine's port, with the engine's own token

The gateway checks only `model` in the body and passes the rest on, so the API accepts every parameter that the engine
accepts. In requests for a stream, it also switches on usage (`meter`). Each request makes two calls in a thread for the
database: one finds the deployment, the other records the tokens. When the caller disconnects, Django cancels the view,
which closes the connection to the engine and so ends its work.
"""

import asyncio
import random
from dataclasses import dataclass
from functools import partial
from typing import Any
from uuid import uuid4

import structlog
from asgiref.sync import sync_to_async
from django.core.exceptions import RequestDataTooBig
from django.db import DatabaseError
from django.db.models import F
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase
from django.views.decorators.csrf import csrf_exempt
from opentelemetry.trace import Span, SpanKind

from control.billing.spending.selectors import cap_reached
from control.billing.usage.selectors import require_price
from control.billing.usage.services import Tokens, usage_add
from control.core.api.errors import ApiError, error_response
from control.core.api.json_body import is_text, parse_json
from control.core.api.request_id import request_id
from control.core.observability import metrics, tracing
from control.serving.captures.services import request_capture
from control.serving.deployments.models import Deployment
from control.serving.deployments.selectors import canary_of, deployment_by_name
from control.serving.gateway.meter import UsageOptions, metered, metered_request, tokens_of
from control.serving.gateway.upstream import Target, forward
from control.tenants.accounts.scopes import INFERENCE
from control.tenants.authentication.api_keys import authenticate_request, require_scope
from control.tenants.authentication.caller import Caller
from control.tenants.row_security.scope import as_tenant

log = structlog.get_logger(__name__)

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
        routed = await sync_to_async(_route)(request)
    except ApiError as error:
        return error_response(error)
    span = _begin_span(routed, path)
    try:
        sent = metered_request(routed.body) or request.body
        answer = await forward(routed.target, path, sent, request_id=request_id(request))
    except ApiError as error:
        tracing.fail(span, str(error.code))
        span.end()
        await sync_to_async(_note_failure)(routed.deployment_id, routed.caller.organization_id)
        return error_response(error)
    headers = {"Content-Type": answer.content_type}
    if answer.retry_after is not None:
        headers["Retry-After"] = answer.retry_after
    count = partial(_count, routed, span)
    if isinstance(answer.body, bytes):
        if answer.status == 200:
            await count(tokens_of(answer.body) or Tokens())
        else:
            tracing.fail(span, str(answer.status))
            span.end()
        return HttpResponse(answer.body, status=answer.status, headers=headers)
    headers |= {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}  # the latter: nginx passes events on at once
    stream = metered(answer.body, options=UsageOptions.of(routed.body), count=count)
    return StreamingHttpResponse(stream, status=answer.status, headers=headers)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Routed:
    target: Target
    caller: Caller
    body: dict[str, Any]
    deployment_id: str  # the deployment that answers: the named one, or its canary
    named_id: str  # the deployment that `model` names
    base_model_id: str
    endpoint: str


def _begin_span(routed: _Routed, path: str) -> Span:
    """The caller must end the span after the last byte of the answer."""
    operation, model = path.removeprefix("/v1/").partition("/")[0], str(routed.body["model"])
    operation = "text_completion" if operation == "completions" else operation  # the convention's name
    about = {tracing.OPERATION: operation, tracing.PROVIDER: "slipstream", tracing.REQUEST_MODEL: model}
    return tracing.start_span(f"{operation} {model}", about, kind=SpanKind.CLIENT)


async def _count(routed: _Routed, span: Span, tokens: Tokens) -> None:
    """Records the tokens under the model name in the request.

    The shield is for a caller who has disconnected: Django has cancelled this task, but the tokens must be recorded.
    """
    span.set_attribute(tracing.INPUT_TOKENS, tokens.input)
    span.set_attribute(tracing.OUTPUT_TOKENS, tokens.output)
    span.end()
    metrics.tokens.labels("endpoint", "input").inc(tokens.input)
    metrics.tokens.labels("endpoint", "output").inc(tokens.output)
    await asyncio.shield(sync_to_async(_write_usage)(routed, tokens))


def _write_usage(routed: _Routed, tokens: Tokens) -> None:
    try:
        with as_tenant(routed.caller.organization_id):
            usage_add(
                caller=routed.caller,
                model=routed.body["model"],
                base_model_id=routed.base_model_id,
                tokens=tokens,
                num_requests=1,
                is_batch=False,
                object_id=routed.named_id,
                sequence=uuid4().hex,
            )
            request_capture(deployment_id=routed.named_id, endpoint=routed.endpoint, body=routed.body)
    except DatabaseError:  # the caller must get the answer even if its tokens cannot be recorded
        log.exception("usage not counted", model=routed.body["model"], tokens=tokens)


def _route(request: HttpRequest) -> _Routed:
    """Finds the deployment. Authenticates first: a caller without a key must learn nothing, not even that its body is
    malformed.

    Raises: ApiError.
    """
    key = authenticate_request(request)
    require_scope(key, INFERENCE, str(request.method))
    body, caller = _body(request), Caller.of(key)
    if reached := cap_reached(caller):
        headers = {"x-should-retry": "false"}
        raise ApiError(429, reached.message, reached.code, type="insufficient_quota", headers=headers)
    deployment = deployment_by_name(key.organization, body["model"], only=key.deployment_ids)
    require_price(base_model_id=deployment.base_model_id, name=deployment.base_model.name)
    answering = _select_process(deployment)
    if answering is None or answering.port is None:
        raise _not_ready(deployment)
    target = Target(port=answering.port, token=answering.token)
    return _Routed(
        target=target,
        caller=caller,
        body=body,
        deployment_id=answering.pk,
        named_id=deployment.pk,
        base_model_id=deployment.base_model_id,
        endpoint=request.path,
    )


def _select_process(deployment: Deployment) -> Deployment | None:
    """Selects the deployment or, for its share of the requests, the canary.

    If only one of them is up, that one gets all requests. None: neither is up.
    """
    is_up, canary = _is_up(deployment), canary_of(deployment)
    if canary is None or not _is_up(canary):
        return deployment if is_up else None
    return canary if not is_up or random.random() * 100 < canary.canary_percent else deployment


def _is_up(deployment: Deployment) -> bool:
    return deployment.state in _ROUTED and deployment.port is not None


def _note_failure(deployment_id: str, organization_id: str) -> None:
    try:
        with as_tenant(organization_id):
            Deployment.objects.filter(pk=deployment_id).update(num_failed=F("num_failed") + 1)
    except DatabaseError:  # the response must report the engine's failure, not the database's
        log.exception("failure not counted", deployment_id=deployment_id)


def _body(request: HttpRequest) -> dict[str, Any]:
    """The body as an object whose `model` is a string. Raises: ApiError."""
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
    return body


def _not_ready(deployment: Deployment) -> ApiError:
    """`x-should-retry` tells OpenAI's client not to retry by itself if the deployment has stopped or failed."""
    is_starting = deployment.state == Deployment.State.PROVISIONING
    headers = {"Retry-After": str(RETRY_AFTER_SECONDS)} | ({} if is_starting else {"x-should-retry": "false"})
    code = "deployment_not_ready" if is_starting else f"deployment_{deployment.state}"
    start = f"POST /v1/deployments/{deployment.pk}/start starts it."
    advice = {
        Deployment.State.PROVISIONING: "Try again in some seconds.",
        Deployment.State.STOPPED: start,
        Deployment.State.FAILED: f"{(deployment.error or {}).get('message', '').rstrip('.')}. {start}".lstrip(". "),
    }.get(Deployment.State(deployment.state), "")
    message = f"The deployment {deployment.name!r} is {deployment.state}. {advice}".rstrip()
    return ApiError(503, message, code, headers=headers)
