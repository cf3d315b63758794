"""How an attempt can end early.

Interruption
├── Cancelled       the customer cancelled the job
├── Draining        this worker stops; another worker continues the job
├── Paused          a spend cap is reached; the job continues when the cap allows it
└── AttemptFailed   an error; `control.queue.jobs.failures` decides whether there is another attempt
    └── ChildCrashed   the child died without a `failed` event, or sent no event for too long
"""

from control.queue.jobs.failures import Failure
from workers.contracts import FailureClass


class Interruption(Exception):  # not named Error, because most interruptions are not errors
    """Ends an attempt before the job is done."""


class Cancelled(Interruption):
    pass


class Draining(Interruption):
    pass


class Paused(Interruption):
    """Raised after the job was paused."""


class AttemptFailed(Interruption):
    def __init__(self, failure_class: FailureClass, code: str, message: str, *, num_rows: int | None = None) -> None:
        super().__init__(message)
        self.failure = Failure(failure_class=failure_class, code=code, message=message, num_rows=num_rows)


class ChildCrashed(AttemptFailed):
    """A child process ended without a result.

    sent_event: whether the child sent an event before it crashed. If so, it had started, and a row of the job may be
        the cause.
    """

    def __init__(self, code: str, message: str, *, sent_event: bool) -> None:
        super().__init__(FailureClass.INFRA, code, message)
        self.sent_event = sent_event
