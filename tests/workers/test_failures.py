"""The child process reports each error with a failure class, which decides whether the job is tried again."""

import errno

import pytest
import torch

from workers.contracts import ContractError, FailureClass
from workers.failures import InvalidInputError, UserConfigError, failed_event


@pytest.mark.parametrize(
    ("error", "failure_class", "code"),
    [
        (UserConfigError("bad_setting", "x"), FailureClass.USER_CONFIG, "bad_setting"),
        (InvalidInputError("bad_row", "x"), FailureClass.INVALID_INPUT, "bad_row"),
        (ContractError("x"), FailureClass.BUG, "invalid_spec"),
        (MemoryError(), FailureClass.OUT_OF_MEMORY, "out_of_memory"),
        (torch.OutOfMemoryError("CUDA out of memory"), FailureClass.OUT_OF_MEMORY, "out_of_memory"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), FailureClass.OUT_OF_MEMORY, "out_of_memory"),
        (OSError(errno.ENOSPC, "No space left on device"), FailureClass.INFRA, "disk_full"),
        (OSError(errno.EIO, "Input/output error"), FailureClass.INFRA, "io_error"),
        (ZeroDivisionError("division by zero"), FailureClass.BUG, "unexpected_error"),
    ],
)
def test_each_exception_gives_the_expected_failure_class_and_code(
    error: Exception, failure_class: FailureClass, code: str
) -> None:
    event = failed_event(error)
    assert (event.failure_class, event.code) == (failure_class, code)


def test_the_message_of_an_unexpected_error_names_the_exception_class() -> None:
    assert failed_event(ZeroDivisionError("division by zero")).message == "ZeroDivisionError: division by zero"


def test_the_message_of_a_failed_event_is_not_empty_and_has_at_most_2000_characters() -> None:
    assert failed_event(MemoryError()).message == "MemoryError"
    assert len(failed_event(UserConfigError("x", "y" * 10_000)).message) == 2000
