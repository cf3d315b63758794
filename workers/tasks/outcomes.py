"""How an attempt can end early.

Interruption
├── Cancelled       the customer asked for it
├── Draining        this worker stops; another one goes on
├── Paused          a spend cap is reached; it goes on when there is something to spend again
└── AttemptFailed   something is wrong; `control.queue.jobs.failures` decides about another try
    └── ChildCrashed   the child died without a word, or said nothing for too long
"""

from control.queue.jobs.failures import Failure
from workers.contracts import FailureClass


class Interruption(Exception):  # not always an error
    """Ends an attempt before its work is done."""


class Cancelled(Interruption):
    pass


class Draining(Interruption):
    pass


class Paused(Interruption):
    """Raised once the job is laid aside."""


class AttemptFailed(Interruption):
    def __init__(self, failure_class: FailureClass, code: str, message: str) -> None:
        super().__init__(message)
        self.failure = Failure(failure_class=failure_class, code=code, message=message)


class ChildCrashed(AttemptFailed):
    """`got_going`: it had printed an event, so its rows can be to blame; else it could not even start."""

    def __init__(self, code: str, message: str, *, got_going: bool) -> None:
        super().__init__(FailureClass.INFRA, code, message)
        self.got_going = got_going
