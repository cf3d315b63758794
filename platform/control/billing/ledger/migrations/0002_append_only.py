"""Triggers refuse to change or delete lines of the ledger."""

from typing import Any

from django.db import migrations

_SQLITE = [
    f"""
    CREATE TRIGGER ledger_no_{verb.lower()} BEFORE {verb} ON ledger_ledgerline
    BEGIN SELECT RAISE(ABORT, 'lines of the ledger are only ever added'); END
    """
    for verb in ("UPDATE", "DELETE")
]
_POSTGRES = [
    """
    CREATE FUNCTION ledger_refuse() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN RAISE EXCEPTION 'lines of the ledger are only ever added'; END $$
    """,
    """
    CREATE TRIGGER ledger_append_only BEFORE UPDATE OR DELETE ON ledger_ledgerline
    FOR EACH ROW EXECUTE FUNCTION ledger_refuse()
    """,
]


def add_triggers(apps: Any, schema_editor: Any) -> None:
    for statement in _POSTGRES if schema_editor.connection.vendor == "postgresql" else _SQLITE:
        schema_editor.execute(statement)


def drop_triggers(apps: Any, schema_editor: Any) -> None:
    if schema_editor.connection.vendor == "postgresql":
        schema_editor.execute("DROP FUNCTION ledger_refuse CASCADE")
        return
    for verb in ("update", "delete"):
        schema_editor.execute(f"DROP TRIGGER ledger_no_{verb}")


class Migration(migrations.Migration):

    dependencies = [
        ('ledger', '0001_initial'),
    ]

    operations = [
        migrations.RunPython(add_triggers, drop_triggers),
    ]
