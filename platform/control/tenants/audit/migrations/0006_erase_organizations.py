"""Triggers delete the audit log of an organization that is deleted, while its row in `audit_auditerasure` is kept.

They accept a row only after the organization's `erase_after`, and protect it like the events. On PostgreSQL, the
function that deletes has the rights of the tables' owner, as that of `0005_drop_exported_months`.
"""

from typing import Any

import django.db.models.functions.datetime
from django.db import migrations, models

EVENTS_A_ROUND = 500

_SQLITE = [
    "DROP TRIGGER audit_no_delete",
    """
    CREATE TRIGGER audit_no_delete BEFORE DELETE ON audit_auditevent
    WHEN NOT EXISTS (
        SELECT 1 FROM audit_auditexport WHERE dropped_at IS NOT NULL
        AND organization_id IS OLD.organization_id AND month = strftime('%Y-%m-01', OLD.created_at)
    ) AND NOT EXISTS (
        SELECT 1 FROM audit_auditerasure WHERE organization_id = OLD.organization_id AND finished_at IS NULL
    )
    BEGIN SELECT RAISE(ABORT, 'audit events are only ever added'); END
    """,
    "DROP TRIGGER audit_export_no_delete",
    """
    CREATE TRIGGER audit_export_no_delete BEFORE DELETE ON audit_auditexport
    WHEN NOT EXISTS (
        SELECT 1 FROM audit_auditerasure WHERE organization_id = OLD.organization_id AND finished_at IS NULL
    )
    BEGIN SELECT RAISE(ABORT, 'exports of the audit log are only ever added'); END
    """,
    """
    CREATE TRIGGER audit_erasure_no_insert BEFORE INSERT ON audit_auditerasure
    WHEN NEW.rounds <> 0 OR NEW.finished_at IS NOT NULL OR NOT EXISTS (
        SELECT 1 FROM accounts_organization
        WHERE id = NEW.organization_id AND erase_after <= strftime('%Y-%m-%d %H:%M:%f', 'now')
    )
    BEGIN SELECT RAISE(ABORT, 'the organization may not be erased yet'); END
    """,
    """
    CREATE TRIGGER audit_erasure_no_delete BEFORE DELETE ON audit_auditerasure
    BEGIN SELECT RAISE(ABORT, 'the record of an erasure is kept'); END
    """,
    """
    CREATE TRIGGER audit_erasure_no_update BEFORE UPDATE ON audit_auditerasure
    WHEN NEW.organization_id IS NOT OLD.organization_id OR NEW.requested_by IS NOT OLD.requested_by
        OR NEW.requested_at IS NOT OLD.requested_at OR NEW.started_at IS NOT OLD.started_at
        OR NEW.num_events IS NOT OLD.num_events OR OLD.finished_at IS NOT NULL
        OR NOT (
            (NEW.finished_at IS NULL AND NEW.rounds = OLD.rounds + 1)
            OR (
                NEW.finished_at IS NOT NULL AND NEW.rounds = OLD.rounds
                AND NOT EXISTS (SELECT 1 FROM audit_auditevent WHERE organization_id = NEW.organization_id)
                AND NOT EXISTS (SELECT 1 FROM audit_auditexport WHERE organization_id = NEW.organization_id)
                AND NOT EXISTS (SELECT 1 FROM accounts_organization WHERE id = NEW.organization_id)
            )
        )
    BEGIN SELECT RAISE(ABORT, 'the record of an erasure is kept'); END
    """,
    f"""
    CREATE TRIGGER audit_erase AFTER UPDATE OF rounds ON audit_auditerasure
    BEGIN
        DELETE FROM audit_auditevent WHERE id IN (
            SELECT id FROM audit_auditevent WHERE organization_id = NEW.organization_id LIMIT {EVENTS_A_ROUND}
        );
        DELETE FROM audit_auditexport WHERE id IN (
            SELECT id FROM audit_auditexport WHERE organization_id = NEW.organization_id LIMIT {EVENTS_A_ROUND}
        );
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
        IF TG_OP = 'DELETE' AND EXISTS (
            SELECT 1 FROM audit_auditerasure WHERE organization_id = OLD.organization_id AND finished_at IS NULL
        ) THEN
            RETURN OLD;
        END IF;
        RAISE EXCEPTION 'audit events are only ever added';
    END $$
    """,
    """
    CREATE OR REPLACE FUNCTION audit_export_refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        IF TG_OP = 'INSERT' AND NEW.dropped_at IS NULL THEN
            RETURN NEW;
        END IF;
        IF TG_OP = 'UPDATE' AND OLD.dropped_at IS NULL AND NEW.dropped_at IS NOT NULL
            AND to_jsonb(NEW) - 'dropped_at' = to_jsonb(OLD) - 'dropped_at' THEN
            RETURN NEW;
        END IF;
        IF TG_OP = 'DELETE' AND EXISTS (
            SELECT 1 FROM audit_auditerasure WHERE organization_id = OLD.organization_id AND finished_at IS NULL
        ) THEN
            RETURN OLD;
        END IF;
        RAISE EXCEPTION 'exports of the audit log are only ever added';
    END $$
    """,
    """
    CREATE FUNCTION audit_erasure_refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        IF TG_OP = 'INSERT' THEN
            IF NEW.rounds = 0 AND NEW.finished_at IS NULL AND EXISTS (
                SELECT 1 FROM accounts_organization
                WHERE id = NEW.organization_id AND erase_after <= statement_timestamp()
            ) THEN
                RETURN NEW;
            END IF;
            RAISE EXCEPTION 'the organization may not be erased yet';
        END IF;
        IF TG_OP = 'UPDATE' AND OLD.finished_at IS NULL
            AND to_jsonb(NEW) - 'rounds' - 'finished_at' = to_jsonb(OLD) - 'rounds' - 'finished_at' THEN
            IF NEW.finished_at IS NULL AND NEW.rounds = OLD.rounds + 1 THEN
                RETURN NEW;
            END IF;
            IF NEW.finished_at IS NOT NULL AND NEW.rounds = OLD.rounds
                AND NOT EXISTS (SELECT 1 FROM audit_auditevent WHERE organization_id = NEW.organization_id)
                AND NOT EXISTS (SELECT 1 FROM audit_auditexport WHERE organization_id = NEW.organization_id)
                AND NOT EXISTS (SELECT 1 FROM accounts_organization WHERE id = NEW.organization_id) THEN
                RETURN NEW;
            END IF;
        END IF;
        RAISE EXCEPTION 'the record of an erasure is kept';
    END $$
    """,
    f"""
    CREATE FUNCTION audit_erase() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = public, pg_temp AS $$
    BEGIN
        DELETE FROM audit_auditevent WHERE id IN (
            SELECT id FROM audit_auditevent WHERE organization_id = NEW.organization_id LIMIT {EVENTS_A_ROUND}
        );
        DELETE FROM audit_auditexport WHERE id IN (
            SELECT id FROM audit_auditexport WHERE organization_id = NEW.organization_id LIMIT {EVENTS_A_ROUND}
        );
        RETURN NULL;
    END $$
    """,
    """
    CREATE TRIGGER audit_erasure_kept BEFORE INSERT OR UPDATE OR DELETE ON audit_auditerasure
    FOR EACH ROW EXECUTE FUNCTION audit_erasure_refuse()
    """,
    """
    CREATE TRIGGER audit_erase AFTER UPDATE OF rounds ON audit_auditerasure
    FOR EACH ROW EXECUTE FUNCTION audit_erase()
    """,
]


def allow_erasures(apps: Any, schema_editor: Any) -> None:
    for statement in _POSTGRES if schema_editor.connection.vendor == "postgresql" else _SQLITE:
        schema_editor.execute(statement)


class Migration(migrations.Migration):

    dependencies = [
        ('accounts', '0008_request_deletion'),
        ('audit', '0005_drop_exported_months'),
    ]

    operations = [
        migrations.CreateModel(
            name='AuditErasure',
            fields=[
                ('organization_id', models.CharField(max_length=40, primary_key=True, serialize=False)),
                ('requested_by', models.CharField(help_text='The id of an API key, member or operator.', max_length=48)),
                ('requested_at', models.DateTimeField()),
                ('started_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ('num_events', models.PositiveBigIntegerField(help_text='How many audit events the organization had at the start.')),
                ('rounds', models.PositiveIntegerField(default=0)),
                ('finished_at', models.DateTimeField(blank=True, null=True)),
            ],
        ),
        # Irreversible: the earlier triggers would not protect the records of erasures.
        migrations.RunPython(allow_erasures),
    ]
