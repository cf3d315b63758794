"""Promise U2 of docs/reliability.md: a release and the previous release can use one database at the same time.

The previous release neither reads nor writes new columns. A migration may therefore not remove a table or column that
the previous release uses, and a new column needs a default in the database, because INSERT statements of the previous
release lack the column.
"""

from collections.abc import Iterator
from typing import Any

import pytest
from django.db import migrations, models
from django.db.migrations.loader import MigrationLoader

# Maps the beginning of a reported incompatibility to the reason why the previous release works nevertheless.
SAFE = {
    "batches.0002_count_unanswered_rows add": "there was no earlier release",
    "idempotency.0003_belong_to_projects constraint idempotency_key_of_organization": (
        "for rows without a project, it is the constraint of the previous release"
    ),
    "idempotency.0003_belong_to_projects constraint idempotency_key_of_project": (
        "the previous release writes no project"
    ),
    "catalog.0009_base_speculators constraint base_speculator_once": "the previous release does not know the table",
    "datasets.0005_name_datasets constraint dataset_version_once": "the previous release writes no name",
    "rollouts.0004_sequential_tests constraint rollout_one_active": (
        "it is the constraint of the previous release with one more status, which that release never sets"
    ),
    "accounts.0004_require_member_ids alter public_id": "0003 has filled it, and the application sets it for new rows",
}
REMOVING_OPERATIONS = (
    migrations.DeleteModel,
    migrations.RemoveField,
    migrations.RenameField,
    migrations.RenameModel,
    migrations.AlterModelTable,
    migrations.RunSQL,  # its effect cannot be analysed; use RunPython with the schema editor
)


def operations() -> Iterator[tuple[str, Any, Any]]:
    """Yields (migration name, operation, state before the operation), except for the first migration of each app."""
    loader = MigrationLoader(None)
    for key in sorted(key for key in loader.disk_migrations if not key[1].startswith("0001")):
        migration = loader.disk_migrations[key]
        if not migration.__module__.startswith("control."):
            continue
        state = loader.project_state(key, at_end=False)
        for operation in migration.operations:
            yield f"{key[0]}.{key[1]}", operation, state.clone()
            operation.state_forwards(key[0], state)


def incompatibility(operation: Any, state: Any, app: str) -> str | None:
    """The reason why the operation would break the previous release, or None."""
    if isinstance(operation, REMOVING_OPERATIONS):
        return f"{type(operation).__name__} removes what the previous release uses"
    if isinstance(operation, migrations.AddField) and not is_optional(operation.field):
        return f"add {operation.name}: the previous release inserts rows without it; use null=True or db_default"
    if isinstance(operation, migrations.AlterField):
        before = state.models[app, operation.model_name_lower].fields[operation.name]
        if before.null and not operation.field.null:
            return f"alter {operation.name}: the previous release writes null"
        shorter = (operation.field.max_length or 0) < (before.max_length or 0)
        if type(before) is not type(operation.field) or shorter:
            return f"alter {operation.name}: the previous release writes another type, or longer values"
    if isinstance(operation, migrations.AddConstraint):
        return f"constraint {operation.constraint.name}: the previous release may violate it"
    return None


def is_optional(field: Any) -> bool:
    return field.null or field.many_to_many or field.db_default is not models.NOT_PROVIDED


def test_migrations_are_compatible_with_the_previous_release() -> None:
    incompatibilities = []
    for name, operation, state in operations():
        if (problem := incompatibility(operation, state, name.partition(".")[0])) is not None:
            incompatibilities.append(f"{name} {problem}")

    assert [line for line in incompatibilities if not any(line.startswith(safe) for safe in SAFE)] == []
    assert all(any(line.startswith(safe) for line in incompatibilities) for safe in SAFE), (
        "an entry of SAFE matches no incompatibility"
    )


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
def test_the_check_refuses_operations_that_remove_or_restrict_columns(operation: Any, is_refused: bool) -> None:
    state = MigrationLoader(None).project_state()

    assert (incompatibility(operation, state, "jobs") is not None) is is_refused
