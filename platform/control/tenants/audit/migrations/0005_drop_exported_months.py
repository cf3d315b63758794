"""Triggers delete a month of audit events when its export is marked as dropped, and refuse every other deletion.

On PostgreSQL, the function that deletes has the rights of the tables' owner, because the service's role has none; it
still sees only the rows of the current tenant.
"""

from typing import Any

from django.db import migrations

_SQLITE = [
    "DROP TRIGGER audit_no_delete",
    """
    CREATE TRIGGER audit_no_delete BEFORE DELETE ON audit_auditevent
    WHEN NOT EXISTS (
        SELECT 1 FROM audit_auditexport WHERE dropped_at IS NOT NULL
        AND organization_id IS OLD.organization_id AND month = strftime('%Y-%m-01', OLD.created_at)
    )
    BEGIN SELECT RAISE(ABORT, 'audit events are only ever added'); END
    """,
    """
    CREATE TRIGGER audit_export_no_delete BEFORE DELETE ON audit_auditexport
    BEGIN SELECT RAISE(ABORT, 'exports of the audit log are only ever added'); END
    """,
    """
    CREATE TRIGGER audit_export_no_insert BEFORE INSERT ON audit_auditexport WHEN NEW.dropped_at IS NOT NULL
    BEGIN SELECT RAISE(ABORT, 'exports of the audit log are only ever added'); END
    """,
    """
    CREATE TRIGGER audit_export_no_update BEFORE UPDATE ON audit_auditexport
    WHEN OLD.dropped_at IS NOT NULL OR NEW.dropped_at IS NULL OR NEW.id IS NOT OLD.id OR NEW.month IS NOT OLD.month
        OR NEW.organization_id IS NOT OLD.organization_id OR NEW.num_events IS NOT OLD.num_events
        OR NEW.sha256 IS NOT OLD.sha256 OR NEW.created_at IS NOT OLD.created_at
    BEGIN SELECT RAISE(ABORT, 'exports of the audit log are only ever added'); END
    """,
    """
    CREATE TRIGGER audit_drop_month AFTER UPDATE ON audit_auditexport
    BEGIN
        SELECT RAISE(ABORT, 'the month has not ended') WHERE NEW.month >= strftime('%Y-%m-01', 'now');
        SELECT RAISE(ABORT, 'the month has other events than the export') WHERE NEW.num_events <> (
            SELECT count(*) FROM audit_auditevent
            WHERE organization_id IS NEW.organization_id AND strftime('%Y-%m-01', created_at) = NEW.month
        );
        DELETE FROM audit_auditevent
        WHERE organization_id IS NEW.organization_id AND strftime('%Y-%m-01', created_at) = NEW.month;
    END
    """,
]
_POSTGRES = [
    """
    CREATE OR REPLACE FUNCTION audit_refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        IF TG_OP = 'DELETE' AND EXISTS (
            SELECT 1 FROM audit_auditexport WHERE dropped_at IS NOT NULL
            AND organization_id IS NOT DISTINCT FROM OLD.organization_id
            AND month = date_trunc('month', OLD.created_at AT TIME ZONE 'UTC')::date
        ) THEN
            RETURN OLD;
        END IF;
        RAISE EXCEPTION 'audit events are only ever added';
    END $$
    """,
    """
    CREATE FUNCTION audit_export_refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        IF TG_OP = 'INSERT' AND NEW.dropped_at IS NULL THEN
            RETURN NEW;
        END IF;
        IF TG_OP = 'UPDATE' AND OLD.dropped_at IS NULL AND NEW.dropped_at IS NOT NULL
            AND to_jsonb(NEW) - 'dropped_at' = to_jsonb(OLD) - 'dropped_at' THEN
            RETURN NEW;
        END IF;
        RAISE EXCEPTION 'exports of the audit log are only ever added';
    END $$
    """,
    """
    CREATE FUNCTION audit_drop_month() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = public, pg_temp AS $$
    DECLARE
        first timestamptz := NEW.month::timestamp AT TIME ZONE 'UTC';
        after timestamptz := (NEW.month + interval '1 month') AT TIME ZONE 'UTC';
        num_dropped bigint;
    BEGIN
        IF after > now() THEN
            RAISE EXCEPTION 'the month has not ended';
        END IF;
        DELETE FROM audit_auditevent
        WHERE organization_id IS NOT DISTINCT FROM NEW.organization_id AND created_at >= first AND created_at < after;
        GET DIAGNOSTICS num_dropped = ROW_COUNT;
        IF num_dropped <> NEW.num_events THEN
            RAISE EXCEPTION 'the month has other events than the export';
        END IF;
        RETURN NULL;
    END $$
    """,
    """
    CREATE TRIGGER audit_export_append_only BEFORE INSERT OR UPDATE OR DELETE ON audit_auditexport
    FOR EACH ROW EXECUTE FUNCTION audit_export_refuse()
    """,
    """
    CREATE TRIGGER audit_drop_month AFTER UPDATE ON audit_auditexport
    FOR EACH ROW EXECUTE FUNCTION audit_drop_month()
    """,
]
_REFUSE_ALL = {
    "sqlite": """
        CREATE TRIGGER audit_no_delete BEFORE DELETE ON audit_auditevent
        BEGIN SELECT RAISE(ABORT, 'audit events are only ever added'); END
        """,
    "postgresql": """
        CREATE OR REPLACE FUNCTION audit_refuse() RETURNS trigger LANGUAGE plpgsql AS
        $$ BEGIN RAISE EXCEPTION 'audit events are only ever added'; END $$
        """,
}


def allow_drops(apps: Any, schema_editor: Any) -> None:
    for statement in _POSTGRES if schema_editor.connection.vendor == "postgresql" else _SQLITE:
        schema_editor.execute(statement)


def refuse_drops(apps: Any, schema_editor: Any) -> None:
    vendor = schema_editor.connection.vendor
    if vendor == "postgresql":
        schema_editor.execute("DROP FUNCTION audit_export_refuse, audit_drop_month CASCADE")
    else:
        schema_editor.execute("DROP TRIGGER audit_no_delete")
        for name in ("audit_export_no_delete", "audit_export_no_insert", "audit_export_no_update", "audit_drop_month"):
            schema_editor.execute(f"DROP TRIGGER {name}")
    schema_editor.execute(_REFUSE_ALL[vendor])


class Migration(migrations.Migration):

    dependencies = [
        ('audit', '0004_record_exports'),
    ]

    operations = [
        migrations.RunPython(allow_drops, refuse_drops),
    ]
