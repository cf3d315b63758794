"""The names of events: OpenAI's where it has one, else the object and what became of it."""

from collections.abc import Mapping

from control.serving.deployments.models import Deployment
from control.workflows.batches.models import Batch
from control.workflows.pipelines.models import Pipeline

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
EVENT_TYPES = (
    *(f"batch.{status}" for status in Batch.Status if status != Batch.Status.VALIDATING),
    BATCH_PAUSED,
    BATCH_RESUMED,
    *EVALUATION_EVENTS.values(),
    *(f"fine_tuning.job.{status}" for status in ("succeeded", "failed", "cancelled")),
    *JOB_EVENTS.values(),
    *(f"pipeline.{status}" for status in Pipeline.Status),
    *(f"deployment.{state}" for state in Deployment.State),
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
