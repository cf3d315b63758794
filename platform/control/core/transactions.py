"""Begins the transaction of a request at its first change, so that slow work before the change delays no other writer.

    with transaction_from_first_change():       the request, see `tenants.idempotency.once`
        get_storage().put_file(...)             no transaction is open
        with change():                          begins the request's transaction
            File.objects.create(...)
        build_response()                        still in the transaction
                                                the end of the block commits it; an exception rolls it back

SQLite has one writer at a time, and on PostgreSQL a worker that claims a job waits for the lock on the job's
organization. A service therefore stores, reads and converts files before it enters `change`.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from django.db import transaction


@dataclass(slots=True)
class _Pending:
    stack: ExitStack
    has_begun: bool = False


_pending: ContextVar[_Pending | None] = ContextVar("slipstream_pending_transaction", default=None)


@contextmanager
def transaction_from_first_change() -> Iterator[None]:
    """The first `change` within the block begins a transaction, which the end of the block commits.

    Of nested blocks, only the outermost one has an effect.
    """
    if _pending.get() is not None:
        yield
        return
    with ExitStack() as stack:
        _pending.set(_Pending(stack))
        stack.callback(_pending.set, None)  # called after the transaction has ended
        yield


@contextmanager
def change() -> Iterator[None]:
    """A transaction for the changes of a service. It is part of the request's transaction if
    `transaction_from_first_change` is active."""
    pending = _pending.get()
    if pending is not None and not pending.has_begun:
        pending.has_begun = True
        pending.stack.enter_context(transaction.atomic())
    with transaction.atomic():
        yield
