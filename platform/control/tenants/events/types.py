"""The names of event types. Where OpenAI has no name for an event, it is the object's type and its new status."""

from collections.abc import Mapping

# Public event types by the types of `JobEvent`. Events of shards and checkpoints are not published.
JOB_EVENTS: Mapping[str, str] = {
    "queued": "job.queued",
    "claimed": "job.running",
    "retried": "job.retried",
    "released": "job.released",
    "paused": "job.paused",
    "resumed": "job.resumed",
    "cancel_requested": "job.cancel_requested",
    "succeeded": "job.succeeded",
    "failed": "job.failed",
    "cancelled": "job.cancelled",
}
# Event types of an evaluation by the type of the `JobEvent` that ends its job.
EVALUATION_EVENTS: Mapping[str, str] = {end: f"evaluation.{end}" for end in ("succeeded", "failed", "cancelled")}
BATCH_PAUSED, BATCH_RESUMED = "batch.paused", "batch.resumed"  # the batch's status stays `in_progress`
ENDPOINT_TEST, ENDPOINT_DISABLED = "webhook_endpoint.test", "webhook_endpoint.disabled"
# These names are public: renaming a status in a model must not rename an event. A test compares them with the models.
_BATCH_STATUSES = ("failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled")
_PIPELINE_STATUSES = (
    "distilling", "training", "evaluating", "gating", "deploying",
    "live", "succeeded", "rejected", "failed", "cancelled",
)  # fmt: skip
_DEPLOYMENT_STATES = ("provisioning", "ready", "degraded", "stopping", "stopped", "failed")
EVENT_TYPES = (
    *(f"batch.{status}" for status in _BATCH_STATUSES),
    BATCH_PAUSED,
    BATCH_RESUMED,
    *EVALUATION_EVENTS.values(),
    *(f"fine_tuning.job.{status}" for status in ("succeeded", "failed", "cancelled")),
    *JOB_EVENTS.values(),
    *(f"pipeline.{status}" for status in _PIPELINE_STATUSES),
    *(f"deployment.{state}" for state in _DEPLOYMENT_STATES),
    *(f"rollout.{name}" for name in ("canary", "promoting", "promoted", "rolled_back")),
    "base_model.ready",
    "base_model.refused",
    "speculator.ready",
    "speculator.failed",
    ENDPOINT_TEST,
    ENDPOINT_DISABLED,
)


def patterns() -> list[str]:
    """Returns the valid subscriptions: a type, `batch.*` for all types that begin with `batch.`, and `*`."""
    prefixes = {name.partition(".")[0] for name in EVENT_TYPES}
    return ["*", *sorted(f"{prefix}.*" for prefix in prefixes), *EVENT_TYPES]


def matches(event_type: str, subscribed: list[str]) -> bool:
    return not {"*", event_type, f"{event_type.partition('.')[0]}.*"}.isdisjoint(subscribed)
