"""Names of the public events of batches: their statuses, and pauses, during which the status stays `in_progress`."""

BATCH_PAUSED, BATCH_RESUMED = "batch.paused", "batch.resumed"
_STATUSES = ("failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled")
EVENT_TYPES = (*(f"batch.{status}" for status in _STATUSES), BATCH_PAUSED, BATCH_RESUMED)
