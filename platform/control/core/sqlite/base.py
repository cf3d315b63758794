"""A database backend for SQLite in which transactions and single writes wait for their turn (see `turns`).

Django's type stubs lack the methods that begin and end transactions; hence the comments `type: ignore`.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from django.db.backends.sqlite3 import base

from control.core.sqlite.turns import ARE_AVAILABLE, MAX_WAIT_SECONDS, Turn

# First words of statements that write. In autocommit mode, each is a transaction of its own.
_WRITES = ("INSERT", "UPDATE", "DELETE", "REPLACE", "CREATE", "ALTER", "DROP")


class DatabaseWrapper(base.DatabaseWrapper):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._turn: Turn | None = None
        self.execute_wrappers.append(self._execute_in_turn)

    def get_new_connection(self, conn_params: dict[str, Any]) -> Any:
        if ARE_AVAILABLE and not self.is_in_memory_db():
            self._turn = Turn(Path(f"{conn_params['database']}-turns"), max_wait_seconds=MAX_WAIT_SECONDS)
        return super().get_new_connection(conn_params)

    def _start_transaction_under_autocommit(self) -> None:
        if self._turn is None:
            super()._start_transaction_under_autocommit()  # type: ignore[misc]
            return
        self._turn.take()
        try:
            super()._start_transaction_under_autocommit()  # type: ignore[misc]
        except BaseException:
            self._turn.give_back()
            raise

    def _commit(self) -> None:
        self._end_turn_after(super()._commit)  # type: ignore[misc]

    def _rollback(self) -> None:
        self._end_turn_after(super()._rollback)  # type: ignore[misc]

    def _close(self) -> None:
        self._end_turn_after(super()._close)  # type: ignore[misc]

    def _end_turn_after(self, function: Callable[[], Any]) -> None:
        try:
            function()
        finally:
            if self._turn is not None:
                self._turn.give_back()

    def _execute_in_turn(
        self, execute: Callable[..., Any], sql: str, params: Any, many: bool, context: dict[str, Any]
    ) -> Any:
        if self._turn is None or self.in_atomic_block or not sql.lstrip()[:7].upper().startswith(_WRITES):
            return execute(sql, params, many, context)
        self._turn.take()
        try:
            return execute(sql, params, many, context)
        finally:
            self._turn.give_back()
