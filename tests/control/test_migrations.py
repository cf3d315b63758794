"""U2: a release's processes and those of the release before it work on one database, so migrations only add.

What the older code does not know, it neither reads nor writes: so nothing it uses may go, and what it leaves out of an
INSERT must have a value of the database's own.
"""

from collections.abc import Iterator
from typing import Any

import pytest
from django.db import migrations, models
from django.db.migrations.loader import MigrationLoader

# Beginnings of complaints, and why the older release does not mind.
SAFE = {
    "batches.0002_count_unanswered_rows add": "nothing had been released before it",
    "accounts.0004_require_member_ids alter public_id": "0003 has filled it, and the application gives each new one",
}
TAKES_AWAY = (
    migrations.DeleteModel,
    migrations.RemoveField,
    migrations.RenameField,
    migrations.RenameModel,
    migrations.AlterModelTable,
    migrations.RunSQL,  # nobody can tell what it does: RunPython with the schema editor can be read
)


def operations() -> Iterator[tuple[str, Any, Any]]:
    """Of all our migrations after each app's first: the migration's name, the operation, the state before it."""
    loader = MigrationLoader(None)
    for key in sorted(key for key in loader.disk_migrations if not key[1].startswith("0001")):
        migration = loader.disk_migrations[key]
        if not migration.__module__.startswith("control."):
            continue
        state = loader.project_state(key, at_end=False)
        for operation in migration.operations:
            yield f"{key[0]}.{key[1]}", operation, state.clone()
            operation.state_forwards(key[0], state)


def complaint(operation: Any, state: Any, app: str) -> str | None:
    """What an older release would stumble over."""
    if isinstance(operation, TAKES_AWAY):
        return f"{type(operation).__name__} takes away what the older release uses"
    if isinstance(operation, migrations.AddField) and not is_optional(operation.field):
        return f"add {operation.name}: the older release inserts rows without it; null=True or db_default"
    if isinstance(operation, migrations.AlterField):
        before = state.models[app, operation.model_name_lower].fields[operation.name]
        if before.null and not operation.field.null:
            return f"alter {operation.name}: the older release writes null"
        shorter = (operation.field.max_length or 0) < (before.max_length or 0)
        if type(before) is not type(operation.field) or shorter:
            return f"alter {operation.name}: the older release writes another type, or more"
    if isinstance(operation, migrations.AddConstraint):
        return f"constraint {operation.constraint.name}: the older release does not keep to it"
    return None


def is_optional(field: Any) -> bool:
    return field.null or field.many_to_many or field.db_default is not models.NOT_PROVIDED


def test_migrations_only_add_what_an_older_release_can_live_with() -> None:
    found = []
    for name, operation, state in operations():
        if (said := complaint(operation, state, name.partition(".")[0])) is not None:
            found.append(f"{name} {said}")

    assert [line for line in found if not any(line.startswith(safe) for safe in SAFE)] == []
    assert all(any(line.startswith(safe) for line in found) for safe in SAFE), "an exception that nobody needs"


@pytest.mark.parametrize(
    ("operation", "is_refused"),
    [
        (migrations.RemoveField("job", "worker"), True),
        (migrations.DeleteModel("Job"), True),
        (migrations.RenameField("job", "worker", "name"), True),
        (migrations.AddField("job", "colour", models.CharField(max_length=8, default="red")), True),
        (migrations.AddField("job", "colour", models.CharField(max_length=8, null=True)), False),
        (migrations.AddField("job", "colour", models.CharField(max_length=8, default="a", db_default="a")), False),
        (migrations.AlterField("job", "not_before", models.DateTimeField()), True),
        (migrations.AlterField("job", "worker", models.CharField(max_length=12, blank=True)), True),
        (migrations.AlterField("job", "worker", models.CharField(max_length=240, blank=True)), False),
        (migrations.AddIndex("job", models.Index(fields=["worker"], name="job_worker")), False),
    ],
    ids=lambda value: value.describe() if hasattr(value, "describe") else "",
)
def test_the_linter_knows_what_takes_away(operation: Any, is_refused: bool) -> None:
    state = MigrationLoader(None).project_state()

    assert (complaint(operation, state, "jobs") is not None) is is_refused
