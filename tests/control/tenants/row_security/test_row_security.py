"""PostgreSQL's row-level security: whatever a query selects, it returns only rows of the current tenant."""

import threading
from typing import Any

import psycopg
import pytest
from django.apps import apps
from django.core.management import call_command
from django.db import connection, models, transaction
from django.db.models import QuerySet
from django.db.utils import ProgrammingError

from control.models.base_speculators.selectors import base_speculators_list
from control.models.base_speculators.services import speculator_resolve
from control.models.catalog.models import BaseModel, BaseSpeculator, Speculator
from control.queue.jobs.models import Job, JobEvent
from control.queue.jobs.services import job_claim, job_submit
from control.tenants.accounts.models import Organization
from control.tenants.row_security.checks import check_role
from control.tenants.row_security.policies import PUBLISHED_TABLES, tenant_tables
from control.tenants.row_security.scope import Across, across_tenants, as_tenant, without_tenant
from tests.control.calls import path_of
from tests.control.factories import client_of, make_base_model, make_file, make_job, make_organization
from tests.control.routes import NO_IDS, api_routes
from tests.control.tenants.row_security.any_row import make_any_row
from tests.control.world import World
from tests.databases import connected_to, postgres_server
from tests.postgres import OWNER

# Every table from which foreign keys lead, directly or through other tables, to an organization.
_TABLES_OF_TENANTS = """
WITH RECURSIVE reaching AS (
    SELECT 'accounts_organization'::regclass::oid AS oid
    -- these have no constraint, because their rows outlive the organization
    UNION SELECT 'audit_auditevent'::regclass::oid
    UNION SELECT 'audit_auditexport'::regclass::oid
    UNION SELECT 'ledger_ledgerline'::regclass::oid
    UNION SELECT conrelid FROM pg_constraint JOIN reaching ON confrelid = reaching.oid WHERE contype = 'f'
)
SELECT relname, relrowsecurity AND relforcerowsecurity, (SELECT count(*) FROM pg_policy WHERE polrelid = pg_class.oid)
FROM pg_class JOIN reaching USING (oid)
"""


def tenant_models() -> list[type[models.Model]]:
    names = {table.name for table in tenant_tables()}
    return [model for model in apps.get_models(include_auto_created=True) if model._meta.db_table in names]


def visible_jobs() -> set[str]:
    return set(Job.objects.values_list("pk", flat=True))


def test_every_table_whose_foreign_keys_lead_to_an_organization_has_a_forced_policy(postgres: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(_TABLES_OF_TENANTS)
        policies = {name: (is_forced, count) for name, is_forced, count in cursor.fetchall()}

    assert len(policies) > 10
    assert {name for name, (is_forced, count) in policies.items() if not is_forced or not count} == set()
    assert {table.name for table in tenant_tables()} == set(policies)


def test_without_filters_no_table_shows_a_foreign_row(postgres: str) -> None:
    organization, other = make_organization(), make_organization()
    rows: dict[type[models.Model], set[Any]] = {}
    for model in tenant_models():
        rows[model] = {make_any_row(model, organization).pk}
        make_any_row(model, other)

    with as_tenant(organization.pk, None):
        visible = {model: set(model._base_manager.values_list("pk", flat=True)) for model in rows}

    for model, pks in rows.items():
        assert pks <= visible[model], f"{model} hides an own row"
    with across_tenants(Across.COMMAND):
        num_rows = {model: model._base_manager.count() for model in rows}
    for model in rows:
        with as_tenant(other.pk, None):
            foreign = set(model._base_manager.values_list("pk", flat=True))
        if model._meta.db_table in PUBLISHED_TABLES:
            assert visible[model] == foreign == set(model._base_manager.values_list("pk", flat=True))
            with without_tenant():
                assert not model._base_manager.exists(), f"{model} shows rows without a tenant"
            continue
        assert not visible[model] & foreign, f"{model} shows a foreign row"
        assert len(visible[model]) + len(foreign) == num_rows[model], f"{model} has rows without an organization"
        with without_tenant():
            assert not model._base_manager.exists(), f"{model} shows rows without a tenant"


def test_the_api_shows_no_foreign_rows_even_without_the_filters_of_the_services(
    postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    organization, other = make_organization(), make_organization()
    other_world = World(other)
    foreign = {value for name, value in other_world.ids_of_all_objects().items() if name not in NO_IDS}
    client = client_of(organization)
    original = QuerySet._filter_or_exclude  # type: ignore[attr-defined]  # private; every filter calls it

    def unfiltered(self: Any, negate: bool, args: Any, kwargs: dict[str, Any]) -> Any:
        """Applies a filter without its conditions on the organization and on the job."""
        remaining = {
            name: value for name, value in kwargs.items() if name.split("__")[0] not in ("organization", "job")
        }
        return original(self, negate, args, remaining)

    monkeypatch.setattr(QuerySet, "_filter_or_exclude", unfiltered)
    routes = [route for route in api_routes() if "GET" in route.methods]
    for route in routes:
        query = {"start_time": "1", "month": "2026-01"}  # usage and exports of the audit log need a time
        response = client.get(path_of(route, other_world), query)
        assert response.status_code == (404 if route.id_parameters else 200), route.path
        body = b"".join(response)
        assert not any(f'"{identity}"'.encode() in body for identity in foreign), route.path
    assert len(routes) > 50


def test_rows_of_another_organization_cannot_be_written(postgres: str) -> None:
    organization, other = make_organization(), make_organization()
    job = make_job(other)
    with as_tenant(organization.pk, None):
        with pytest.raises(ProgrammingError, match="row-level security"):
            make_job(other)
        with pytest.raises(ProgrammingError, match="row-level security"):
            JobEvent.objects.create(job_id=job.pk, seq=1, type="queued")
        assert Job.objects.filter(pk=job.pk).update(status="failed") == 0
        assert Job.objects.all().delete() == (0, {})
    job.refresh_from_db()
    assert job.status == "queued"


def test_an_organization_can_read_shared_models_but_not_write_them(postgres: str) -> None:
    shared = make_base_model()
    with as_tenant(make_organization().pk, None):
        assert BaseModel.objects.get() == shared
        assert BaseModel.objects.update(path="/elsewhere") == 0
        with pytest.raises(ProgrammingError, match="row-level security"):
            make_base_model()


def test_an_organization_can_read_base_speculators_but_not_publish_change_or_withdraw_them(postgres: str) -> None:
    values = {"base_model": make_base_model(), "name": "general", "kind": "medusa", "target_revision": "0" * 64}
    published = BaseSpeculator.objects.create(version=1, storage_prefix="base", **values)
    with as_tenant(make_organization().pk, None):
        assert base_speculators_list().get() == published
        assert BaseSpeculator.objects.update(storage_prefix="elsewhere") == 0
        assert BaseSpeculator.objects.filter(pk=published.pk).delete() == (0, {})
        with pytest.raises(ProgrammingError, match="row-level security"):
            BaseSpeculator.objects.create(version=2, storage_prefix="own", **values)
    published.refresh_from_db()
    assert published.storage_prefix == "base"


def test_an_organization_uses_a_base_speculator_for_itself_only(postgres: str) -> None:
    values = {"base_model": make_base_model(), "name": "general", "kind": "medusa", "target_revision": "0" * 64}
    published = BaseSpeculator.objects.create(version=1, storage_prefix="base", **values)
    organization, other = make_organization(), make_organization()
    with as_tenant(organization.pk, None):
        use = speculator_resolve(organization, published.pk)
        assert use.artifact_prefix == "base"
        assert speculator_resolve(organization, published.pk) == use
    with as_tenant(other.pk, None):
        assert not Speculator.objects.exists()
        assert speculator_resolve(other, published.pk) != use


def test_the_tenant_set_for_a_block_of_code_survives_commits_rollbacks_and_savepoints(postgres: str) -> None:
    organization, other = make_organization(), make_organization()
    own, foreign = make_job(organization).pk, make_job(other).pk
    with as_tenant(organization.pk, None):
        assert visible_jobs() == {own}
        with transaction.atomic():
            assert visible_jobs() == {own}
            with as_tenant(other.pk, None):
                assert visible_jobs() == {foreign}
            with transaction.atomic():
                with as_tenant(other.pk, None):
                    assert visible_jobs() == {foreign}
                transaction.set_rollback(True)
            assert visible_jobs() == {own}
            with pytest.raises(ProgrammingError), transaction.atomic():
                make_job(other)
            assert visible_jobs() == {own}
        assert [job.pk for job in Job.objects.iterator()] == [own]
        with transaction.atomic(), transaction.atomic():  # the inner block begins with a savepoint
            assert visible_jobs() == {own}
    with transaction.atomic():
        assert visible_jobs() == {own, foreign}, "outside of the blocks, the test sees all organizations again"


def test_a_connection_has_no_tenant_after_a_transaction(postgres: str) -> None:
    """A connection pooler may give the connection to another client after each transaction."""
    with as_tenant(make_organization().pk, None):
        visible_jobs()
        with transaction.atomic():
            visible_jobs()
        assert connection.connection.execute("SELECT current_setting('slipstream.tenant', true)").fetchone()[0] == ""


def test_a_thread_starts_without_a_tenant(postgres: str) -> None:
    make_job()
    visible: list[set[str]] = []

    def read_jobs() -> None:
        visible.append(visible_jobs())
        connection.close()

    thread = threading.Thread(target=read_jobs)
    thread.start()
    thread.join()

    assert visible == [set()]


def test_the_applications_role_owns_nothing_and_cannot_disable_a_policy(postgres: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_class WHERE relowner = current_user::regrole")
        assert cursor.fetchone() == (0,)
    for statement in (
        "ALTER TABLE jobs_job DISABLE ROW LEVEL SECURITY",
        "DROP POLICY tenant ON jobs_job",
        "SET SESSION AUTHORIZATION slipstream_owner",
        "DELETE FROM django_migrations",
        "TRUNCATE jobs_job",
        "CREATE TABLE own_table (id int)",
    ):
        with pytest.raises(ProgrammingError), connection.cursor() as cursor:
            cursor.execute(statement)


def test_policies_apply_to_the_owner_of_the_tables_too(postgres: str) -> None:
    make_job()
    url = postgres.replace("slipstream_app@", f"{OWNER}@")
    with psycopg.connect(url) as owner:
        assert owner.execute("SELECT count(*) FROM jobs_job").fetchone() == (0,)


def test_migrating_again_replaces_only_an_altered_policy(postgres: str) -> None:
    name = postgres.partition("?")[0].rpartition("/")[2]
    with psycopg.connect(postgres_server().url(name, "postgres"), autocommit=True) as superuser:
        before = superuser.execute("SELECT array_agg(oid ORDER BY oid) FROM pg_policy").fetchone()
        superuser.execute("ALTER TABLE files_file NO FORCE ROW LEVEL SECURITY")
        migrate_as_owner(postgres)
        after = superuser.execute("SELECT array_agg(oid ORDER BY oid) FROM pg_policy").fetchone()
        forced = superuser.execute("SELECT relforcerowsecurity FROM pg_class WHERE relname = 'files_file'").fetchone()

    assert before is not None
    assert after is not None
    assert len(set(after[0]) - set(before[0])) == 1, "only the altered policy may be replaced"
    assert forced == (True,)


def migrate_as_owner(url: str) -> None:
    with connected_to(url.replace("slipstream_app@", f"{OWNER}@")):
        call_command("migrate", verbosity=0)


def test_a_role_that_bypasses_policies_causes_a_warning(postgres: str) -> None:
    assert check_role(databases=["default"]) == []
    with connected_to(postgres.replace("slipstream_app@", "postgres@")):
        assert [warning.id for warning in check_role(databases=["default"])] == ["tenancy.W001"]


def test_a_claim_has_the_organization_of_its_job(postgres: str) -> None:
    organization = make_organization()
    job = job_submit(organization=organization, kind=Job.Kind.TRAINING, params={})
    with without_tenant():
        claim = job_claim(job_id=job.pk, worker="worker")
    assert claim is not None
    assert claim.organization_id == organization.pk


def test_requests_to_the_api_see_the_rows_of_their_organization(postgres: str) -> None:
    organization, other = make_organization(), make_organization()
    own, foreign = make_file(organization), make_file(other)
    client = client_of(organization)

    assert [file["id"] for file in client.get("/v1/files").json()["data"]] == [own.pk]
    assert b"".join(client.get(f"/v1/files/{own.pk}/content"))
    assert client.get(f"/v1/files/{foreign.pk}").status_code == 404
    assert client.delete(f"/v1/files/{own.pk}").status_code == 200
    assert Organization.objects.count() == 2
