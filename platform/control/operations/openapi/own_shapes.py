"""Our own objects as we answer them."""

from typing import Any, Literal

from pydantic import Field

from control.core.api.schemas import Failure
from control.operations.openapi.deployment_shapes import ServedAdapter
from control.operations.openapi.openai_shapes import Amount
from control.operations.openapi.shapes import Figures, Paused, Shape, Unix
from control.queue.jobs.schemas import Progress


class ApiKeyObject(Shape):
    id: str
    object: Literal["api_key"]
    name: str
    hint: str = Field(description="Its first and last characters.")
    scopes: list[str]
    project_id: str | None
    deployment_ids: list[str] | None = Field(description="The only ones it may use; null: all.")
    rotated_from: str | None
    created_at: Unix
    expires_at: Unix | None
    revoked_at: Unix | None
    last_used_at: Unix | None


class NewApiKeyObject(ApiKeyObject):
    key: str | None = Field(description="Shown this once; null when an Idempotency-Key repeats the answer.")


class MemberObject(Shape):
    id: str
    object: Literal["member"]
    email: str
    role: Literal["owner", "member"]


class ProjectObject(Shape):
    id: str
    object: Literal["project"]
    name: str
    created_at: Unix
    archived_at: Unix | None


class BaseModelObject(Shape):
    id: str
    object: Literal["base_model"]
    name: str
    status: Literal["checking", "ready", "refused"]
    error: Failure | None = Field(description="Why it was refused.")
    source: str | None = Field(description="Where you registered it from.")
    model_type: str | None
    revision: str | None = Field(description="Of its weights; a speculator serves the one it was trained for.")
    is_shared: bool
    created_at: Unix


class CaptureObject(Shape):
    """Of a deployment whose requests are kept."""

    object: Literal["capture"]
    deployment_id: str
    hours: int = Field(description="A request is deleted when it is so old.")
    num_requests: int
    oldest_at: Unix | None
    created_at: Unix


class DatasetErrors(Shape):
    object: Literal["list"]
    data: list[Figures]
    total_count: int
    by_code: dict[str, int]


class DatasetObject(Shape):
    id: str
    object: Literal["dataset"]
    file_id: str
    model: str | None
    status: Literal["valid", "invalid"]
    format: Literal["batch", "chat", "prompt"] | None
    bytes: int
    num_rows: int
    num_answers: int
    num_tokens: int | None
    num_tokens_exact: bool | None
    errors: DatasetErrors
    created_at: Unix


class DatasetErrorList(Shape):
    object: Literal["list"]
    data: list[Figures]
    total_count: int
    is_complete: bool
    first_id: None
    last_id: None
    has_more: Literal[False]


class PreviewRows(Shape):
    object: Literal["list"]
    data: list[Figures]
    first_id: None
    last_id: None
    has_more: Literal[False]


class JobObject(Shape):
    id: str
    object: Literal["job"]
    kind: str
    status: Literal["queued", "running", "paused", "succeeded", "failed", "cancelled"]
    attempt: int
    paused: Paused | None
    progress: Progress | None
    metrics: Figures
    result: Figures
    error: Figures | None
    created_at: Unix
    started_at: Unix | None
    finished_at: Unix | None
    cancel_requested_at: Unix | None


class JobEventObject(Shape):
    id: str
    object: Literal["job.event"]
    job_id: str
    type: str
    data: Figures
    created_at: Unix


class DeploymentObject(Shape):
    id: str
    object: Literal["deployment"]
    name: str = Field(description="What callers put into `model`.")
    model: str
    speculator_id: str | None
    adapters: list[ServedAdapter]
    desired_state: Literal["running", "stopped"]
    state: Literal["provisioning", "ready", "degraded", "stopping", "stopped", "failed"]
    error: Failure | None
    created_at: Unix
    healthy_at: Unix | None


class EventData(Shape):
    id: str


class EventObject(Shape):
    id: str
    object: Literal["event"]
    type: str
    created_at: Unix
    data: EventData


class WebhookEndpointObject(Shape):
    id: str
    object: Literal["webhook_endpoint"]
    url: str
    description: str
    events: list[str]
    enabled: bool
    disabled_reason: Literal["by_customer", "gone", "failing"] | None
    failing_since: Unix | None
    created_at: Unix


class WebhookEndpointWithSecret(WebhookEndpointObject):
    secret: str | None = Field(description="Shown this once; null when an Idempotency-Key repeats the answer.")


class DeliveryAttempt(Shape):
    at: Unix
    status_code: int | None
    error: str | None
    milliseconds: int


class WebhookDeliveryObject(Shape):
    id: str
    object: Literal["webhook_delivery"]
    endpoint_id: str
    event_id: str
    event_type: str
    object_id: str
    status: Literal["pending", "succeeded", "failed"]
    attempt: int
    history: list[DeliveryAttempt]
    next_attempt_at: Unix | None
    created_at: Unix
    finished_at: Unix | None


class Reference(Shape):
    type: str
    id: str


class AuditEventObject(Shape):
    id: str
    object: Literal["audit_event"]
    action: str
    actor: Reference
    target: Reference
    ip: str | None
    request_id: str
    created_at: Unix


class UsageTotal(Shape):
    object: Literal["usage"]
    start_time: Unix
    end_time: Unix
    input_tokens: int
    input_cached_tokens: int
    output_tokens: int
    num_model_requests: int
    cost: Amount


class Completion(Shape):
    """OpenAI's, with `seed` and `metrics.speculative_decoding`."""

    model_config = {"extra": "allow"}

    id: str
    object: str
    created: Unix
    model: str
    choices: list[Any]
