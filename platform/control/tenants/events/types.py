"""The names of events: OpenAI's where it has one, else the type of the object and its new status."""

from collections.abc import Mapping

# What a job's history says, by the public name; its shards and checkpoints stay in the history.
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
# What the end of an evaluation's job is to the evaluation.
EVALUATION_EVENTS: Mapping[str, str] = {end: f"evaluation.{end}" for end in ("succeeded", "failed", "cancelled")}
BATCH_PAUSED, BATCH_RESUMED = "batch.paused", "batch.resumed"  # the batch is in progress all the while
ENDPOINT_TEST, ENDPOINT_DISABLED = "webhook_endpoint.test", "webhook_endpoint.disabled"
# Public names: renaming a status in a table must not rename an event. A test compares them with the tables' statuses.
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
    """What may be subscribed to: a name, `batch.*` for all that begin with `batch.`, or `*`."""
    prefixes = {name.partition(".")[0] for name in EVENT_TYPES}
    return ["*", *sorted(f"{prefix}.*" for prefix in prefixes), *EVENT_TYPES]


def matches(event_type: str, subscribed: list[str]) -> bool:
    return not {"*", event_type, f"{event_type.partition('.')[0]}.*"}.isdisjoint(subscribed)
