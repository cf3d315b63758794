"""Management commands of the job queue."""
