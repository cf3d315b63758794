"""Undoes what a block has stored when its transaction is rolled back: storage itself has no transactions."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from control.core.storage.backends import get_storage

Undo = Callable[[], None]

_undos: ContextVar[list[Undo] | None] = ContextVar("undos_of_this_block", default=None)


@contextmanager
def delete_stored_on_error() -> Iterator[None]:
    """Use this around a transaction. If the block raises, undoes what was stored in the block."""
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
        # the outer block may still raise an exception, which rolls back what this block's `undo` functions have
        # written
        if outer is not None:
            outer.extend(undos)


def register_stored(key: str) -> None:
    """Registers an object that was stored in the current `delete_stored_on_error` block, if there is one."""
    register_undo(lambda: get_storage().delete(key))


def register_undo(undo: Undo) -> None:
    """`undo` may be called more than once."""
    undos = _undos.get()
    if undos is not None:
        undos.append(undo)
