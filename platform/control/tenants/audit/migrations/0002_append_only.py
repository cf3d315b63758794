"""Triggers refuse to change or delete audit events."""

from typing import Any

from django.db import migrations

_SQLITE = [
    f"""
    CREATE TRIGGER audit_no_{verb.lower()} BEFORE {verb} ON audit_auditevent
    BEGIN SELECT RAISE(ABORT, 'audit events are only ever added'); END
    """
    for verb in ("UPDATE", "DELETE")
]
_POSTGRES = [
    """
    CREATE FUNCTION audit_refuse() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN RAISE EXCEPTION 'audit events are only ever added'; END $$
    """,
    """
    CREATE TRIGGER audit_append_only BEFORE UPDATE OR DELETE ON audit_auditevent
    FOR EACH ROW EXECUTE FUNCTION audit_refuse()
    """,
]


def add_triggers(apps: Any, schema_editor: Any) -> None:
    for statement in _POSTGRES if schema_editor.connection.vendor == "postgresql" else _SQLITE:
        schema_editor.execute(statement)


def drop_triggers(apps: Any, schema_editor: Any) -> None:
    if schema_editor.connection.vendor == "postgresql":
        schema_editor.execute("DROP FUNCTION audit_refuse CASCADE")
        return
    for verb in ("update", "delete"):
        schema_editor.execute(f"DROP TRIGGER audit_no_{verb}")


class Migration(migrations.Migration):

    dependencies = [
        ('audit', '0001_audit_events'),
    ]

    operations = [
        migrations.RunPython(add_triggers, drop_triggers),
    ]
