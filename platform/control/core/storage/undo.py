"""Deletes stored objects when the database transaction is rolled back: the object storage has no transactions."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from control.core.storage.backends import get_storage

Undo = Callable[[], None]

_undos: ContextVar[list[Undo] | None] = ContextVar("undos_of_this_block", default=None)


@contextmanager
def delete_stored_on_error() -> Iterator[None]:
    """Use this around a transaction. If the block raises, calls the undo functions registered in the block."""
    outer = _undos.get()
    undos: list[Undo] = []
    _undos.set(undos)
    try:
        yield
    except BaseException:
        for undo in undos:
            undo()
        raise
    finally:
        _undos.set(outer)
        # If the outer block raises, too, its transaction rolls back what undo functions have written to the database.
        # The outer block therefore calls them again.
        if outer is not None:
            outer.extend(undos)


def register_stored(key: str) -> None:
    """Deletes the object `key` if the current `delete_stored_on_error` block raises. Does nothing outside a block."""
    register_undo(lambda: get_storage().delete(key))


def register_undo(undo: Undo) -> None:
    """Calls `undo` if the current `delete_stored_on_error` block raises, possibly more than once."""
    undos = _undos.get()
    if undos is not None:
        undos.append(undo)
