"""Deletes stored objects when the transaction that names them is rolled back: storage itself has no transactions."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from control.core.storage.backends import get_storage

_stored: ContextVar[list[str] | None] = ContextVar("stored_in_this_block", default=None)


@contextmanager
def stored_bytes_undone() -> Iterator[None]:
    """Use it around a transaction. If the block raises, the objects that were stored in the block are deleted."""
    outer = _stored.get()
    keys: list[str] = []
    _stored.set(keys)
    try:
        yield
    except BaseException:
        for key in keys:
            get_storage().delete(key)
        raise
    finally:
        _stored.set(outer)
    if outer is not None:
        outer.extend(keys)


def note_stored(key: str) -> None:
    """Registers an object for deletion in case the surrounding transaction, which writes its row, is rolled back."""
    keys = _stored.get()
    if keys is not None:
        keys.append(key)
