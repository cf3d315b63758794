"""Adds an index to a table that may be large, while the service runs. The migration needs `atomic = False`."""

from typing import Any

from django.db import migrations


class AddIndexConcurrently(migrations.AddIndex):
    """On PostgreSQL, builds the index without a lock that blocks writers. On SQLite, writers wait for the short build.

    An interrupted build leaves an invalid index, which the next attempt replaces.
    """

    def database_forwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        if schema_editor.connection.vendor != "postgresql":
            super().database_forwards(app_label, schema_editor, from_state, to_state)
            return
        model = to_state.apps.get_model(app_label, self.model_name)
        if self.allow_migrate_model(schema_editor.connection.alias, model):
            name = schema_editor.quote_name(self.index.name)
            schema_editor.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {name}")
            schema_editor.add_index(model, self.index, concurrently=True)
