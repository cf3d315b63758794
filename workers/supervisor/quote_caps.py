"""Pauses an attempt at training or evaluation when the quote of its pipeline has reached its cap."""

from control.queue.jobs.services import job_pause
from control.workflows.quotes.caps import job_cap_reached
from workers.supervisor.attempt import Attempt
from workers.supervisor.outcomes import Cancelled, Paused


def pause_at_cap(attempt: Attempt) -> None:
    """Raises: Paused; Cancelled: the customer cancelled the job before it could be paused."""
    reached = job_cap_reached(attempt.job)
    if reached is not None:
        raise Paused(reached.message) if job_pause(claim=attempt.claim, why=reached.as_reason()) else Cancelled
