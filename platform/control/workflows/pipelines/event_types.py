"""Names of the public events of pipelines: one for each status."""

_STATUSES = (
    "distilling", "training", "evaluating", "gating", "deploying",
    "live", "succeeded", "rejected", "failed", "cancelled",
)  # fmt: skip
EVENT_TYPES = tuple(f"pipeline.{status}" for status in _STATUSES)
