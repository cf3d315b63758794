"""Names of the public events of fine-tuning jobs, which are OpenAI's."""

EVENT_TYPES = ("fine_tuning.job.succeeded", "fine_tuning.job.failed", "fine_tuning.job.cancelled")
