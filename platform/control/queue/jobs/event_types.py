"""Names of the public events of jobs and evaluations."""

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
# The same for fine-tuning jobs; workflows/fine_tuning/event_types.py lists all of their event types.
FINE_TUNING_EVENTS: Mapping[str, str] = {end: f"fine_tuning.job.{end}" for end in ("succeeded", "failed", "cancelled")}
EVENT_TYPES = (*JOB_EVENTS.values(), *EVALUATION_EVENTS.values())
