"""The errors of a child process, and how they become events. Standard library only.

JobError
├── UserConfigError    the customer's model or settings are unusable; never retried
├── InvalidInputError  the customer's rows are unusable; never retried
├── InfraError         this machine failed; another attempt may succeed
└── TooManyRows        the memory did not suffice for the rows that were answered at once; fewer may succeed
"""

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from workers.contracts import ContractError, Failed, FailureClass

_MAX_MESSAGE = 2000


class JobError(Exception):
    """`code` never changes and is meant for programs; the message is meant for people."""

    failure_class = FailureClass.BUG

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class UserConfigError(JobError):
    failure_class = FailureClass.USER_CONFIG


class InvalidInputError(JobError):
    failure_class = FailureClass.INVALID_INPUT


class InfraError(JobError):
    failure_class = FailureClass.INFRA


class TooManyRows(JobError):
    failure_class = FailureClass.OUT_OF_MEMORY

    def __init__(self, message: str, *, num_rows: int) -> None:
        super().__init__("out_of_memory", message)
        self.num_rows = num_rows


@contextmanager
def rows_at_once(num_rows: int) -> Iterator[None]:
    """Turns an out-of-memory error in the `with` block, which answers `num_rows` rows at once, into `TooManyRows`."""
    try:
        yield
    except Exception as error:
        if _is_out_of_memory(error):
            raise TooManyRows(str(error) or type(error).__name__, num_rows=num_rows) from error
        raise


def failed_event(error: BaseException) -> Failed:
    """Returns the event with its failure class. Unknown exceptions are bugs, which are retried only a few times."""
    failure_class, code = _classify(error)
    message = str(error) or type(error).__name__
    if failure_class is FailureClass.BUG and not isinstance(error, JobError):
        message = f"{type(error).__name__}: {message}"
    num_rows = error.num_rows if isinstance(error, TooManyRows) else None
    return Failed(failure_class=failure_class, code=code, message=message[:_MAX_MESSAGE], num_rows=num_rows)


def _classify(error: BaseException) -> tuple[FailureClass, str]:
    if isinstance(error, JobError):
        return error.failure_class, error.code
    if _is_out_of_memory(error):
        return FailureClass.OUT_OF_MEMORY, "out_of_memory"
    if isinstance(error, ContractError):
        return FailureClass.BUG, "invalid_spec"
    if isinstance(error, OSError):
        return FailureClass.INFRA, "disk_full" if error.errno == errno.ENOSPC else "io_error"
    return FailureClass.BUG, "unexpected_error"


def _is_out_of_memory(error: BaseException) -> bool:
    # torch.OutOfMemoryError is recognised by its name, and the CPU allocator's RuntimeError by its text, because this
    # module must not import torch.
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    return isinstance(error, RuntimeError) and "DefaultCPUAllocator" in str(error)
