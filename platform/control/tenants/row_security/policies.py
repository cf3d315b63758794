"""PostgreSQL's row-level security policies and privileges, derived from the models, so that no table can be forgotten.

A row belongs to the organization to which its foreign key points, or to the organization of its parent row.
`migrate` ends by updating policies that have changed. All policies are forced (FORCE ROW LEVEL SECURITY): they apply
even to the tables' owner, and only a superuser or a role with BYPASSRLS bypasses them.
"""

import hashlib
from dataclasses import dataclass

from django.apps import apps
from django.db import connections, models
from django.db.backends.utils import CursorWrapper

from control.core.settings.config import get_config
from control.tenants.accounts.models import Organization
from control.tenants.row_security.scope import ALL_TENANTS, SETTING

# All tenants can read rows without an organization in these tables; in other tables only operators can.
SHARED_TABLES = frozenset({"catalog_basemodel"})
# All tenants can read every row of these tables, and only operators can write them.
PUBLISHED_TABLES = frozenset({"catalog_basespeculator"})
# The application may not change or delete rows of these tables.
APPEND_ONLY_TABLES = frozenset({"audit_auditevent", "ledger_ledgerline"})

# A sub-select, so that PostgreSQL reads the setting once per statement and not once per row.
_TENANT = f"(SELECT current_setting('{SETTING}', true))"


@dataclass(frozen=True, slots=True)
class TenantTable:
    name: str
    condition: str  # SQL that is true for a row of the current tenant

    @property
    def policies(self) -> dict[str, str]:
        """Returns, by policy name, the SQL that follows `CREATE POLICY name ON table`."""
        if self.name in PUBLISHED_TABLES:
            operators = f"({_TENANT} = '{ALL_TENANTS}')"
            return {
                "tenant": f"USING {operators} WITH CHECK {operators}",
                "shared": f"FOR SELECT USING ({_TENANT} <> '')",
            }
        visible = f"({_TENANT} = '{ALL_TENANTS}' OR {self.condition})"
        policies = {"tenant": f"USING {visible} WITH CHECK {visible}"}
        if self.name in SHARED_TABLES:
            policies["shared"] = "FOR SELECT USING (organization_id IS NULL)"
        return policies


def tenant_tables() -> list[TenantTable]:
    """Returns every table that refers to an organization, directly or through another table."""
    models_and_conditions = [(model, _tenant_condition(model)) for model in apps.get_models(include_auto_created=True)]
    return [TenantTable(model._meta.db_table, sql) for model, sql in models_and_conditions if sql is not None]


def _tenant_condition(model: type[models.Model], below: tuple[type[models.Model], ...] = ()) -> str | None:
    """Returns `TenantTable.condition`, or None if the table belongs to no organization.

    Args: below: the models through which this model was reached. They are not followed again.
    """
    if model is Organization:
        return f"id = {_TENANT}"
    keys = [field for field in model._meta.concrete_fields if isinstance(field, models.ForeignKey)]
    if direct := next((key for key in keys if key.related_model is Organization), None):
        return f"{direct.column} = {_TENANT}"
    for key in keys:
        parent = key.related_model
        assert not isinstance(parent, str), "models are loaded"
        # Within the sub-select, the policy of the parent's table applies.
        if not key.null and parent not in (model, *below) and _tenant_condition(parent, (model, *below)) is not None:
            table, column = parent._meta.db_table, key.target_field.column
            joined = f'whole."{column}" = "{model._meta.db_table}"."{key.column}"'
            return f'EXISTS (SELECT 1 FROM "{table}" AS whole WHERE {joined})'  # noqa: S608  # names of our models
    return None


def synchronise(using: str, **_: object) -> None:
    """Receiver of `post_migrate`. Does nothing on SQLite."""
    connection = connections[using]
    if connection.vendor != "postgresql":
        return
    existing = set(connection.introspection.table_names())
    with connection.cursor() as cursor:
        for table in tenant_tables():
            if table.name in existing:  # while migrating backwards, some tables do not exist
                _enforce(cursor, table)
        _grant(cursor, existing)


def _enforce(cursor: CursorWrapper, table: TenantTable) -> None:
    fingerprint = hashlib.sha256(repr(sorted(table.policies.items())).encode()).hexdigest()
    cursor.execute(
        "SELECT relforcerowsecurity AND relrowsecurity AND obj_description(oid) = %s"
        " FROM pg_class WHERE oid = to_regclass(%s)",
        [fingerprint, f'"{table.name}"'],
    )
    if cursor.fetchone()[0]:
        return  # nothing has changed, and each statement below would block all readers for a moment
    cursor.execute(f'ALTER TABLE "{table.name}" ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY')
    for name, rule in table.policies.items():
        cursor.execute(f'DROP POLICY IF EXISTS "{name}" ON "{table.name}"')
        cursor.execute(f'CREATE POLICY "{name}" ON "{table.name}" {rule}')
    cursor.execute(f'COMMENT ON TABLE "{table.name}" IS %s', [fingerprint])


def _grant(cursor: CursorWrapper, existing: set[str]) -> None:
    """Grants the application's role access to rows, but no right to change tables.

    Does nothing if there is no such role, because the service connects as the tables' owner.
    """
    role = get_config().database_role
    cursor.execute("SELECT count(*) FROM pg_roles WHERE rolname = %s AND rolname <> current_user", [role])
    if not cursor.fetchone()[0]:
        return
    cursor.execute(f'GRANT USAGE ON SCHEMA public TO "{role}"')
    cursor.execute(f'GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO "{role}"')
    cursor.execute(f'GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO "{role}"')
    for name in {"django_migrations", *APPEND_ONLY_TABLES} & existing:
        kept = "INSERT, " if name in APPEND_ONLY_TABLES else ""
        cursor.execute(f'REVOKE {"" if kept else "INSERT, "}UPDATE, DELETE ON "{name}" FROM "{role}"')
