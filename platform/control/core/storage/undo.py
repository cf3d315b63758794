"""Deletes stored objects when the transaction that names them is rolled back: storage itself has no transactions."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from control.core.storage.backends import get_storage

_stored: ContextVar[list[str] | None] = ContextVar("stored_in_this_block", default=None)


@contextmanager
def delete_stored_on_error() -> Iterator[None]:
    """Use this around a transaction. If the block raises, deletes the objects that were stored in the block."""
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
    if outer is not None:  # blocks are nested, and the outer block may still raise
        outer.extend(keys)


def register_stored(key: str) -> None:
    """Registers an object that was stored in the current `delete_stored_on_error` block, if there is one."""
    keys = _stored.get()
    if keys is not None:
        keys.append(key)
