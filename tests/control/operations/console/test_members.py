"""Promise S25 of docs/reliability.md: members see and change only objects of their organization, as their role allows.

The tests go through every URL of the console, read from the URL table. They fail for a new page that has no example
object.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from django.contrib import admin
from django.contrib.admin.utils import quote
from django.db import connection
from django.db.models import Model
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from control.operations.console.base import RowsAdmin
from control.tenants.accounts.models import Member, Organization, User
from control.tenants.audit.models import AuditEvent
from tests.control.factories import make_organization
from tests.control.operations.console.support import change_path, press
from tests.control.world import World

pytestmark = pytest.mark.django_db

UNKNOWN = "nothing-of-this-name"
STAFF_PAGES = {"tenancy_limits", "accounts_user"}
READS = {"changelist", "change", "history"}
# Names of tables, grouped by the roles that may use them. OPENS has the tables whose pages a role may open, and CHANGES
# the tables in which the role may create or change rows.
WORK = {
    *("jobs_job", "files_file", "batches_batch", "pipelines_pipeline", "evaluations_evaluation", "catalog_basemodel"),
    *("distillations_distillation", "datasets_dataset", "adapters_adapter", "catalog_speculator", "quotes_quote"),
    *("deployments_deployment", "rollouts_rollout", "captures_capture", "loops_loop", "loops_loopround"),
    *("webhooks_webhookendpoint", "webhooks_webhookdelivery"),
}
MONEY = {"accounts_organization", "spending_spendcap"}
OWNERS = {"accounts_member", "accounts_project", "accounts_apikey", "audit_auditevent"}
OWNERS |= {"offboarding_organizationexport"}
OPENS = {"owner": WORK | MONEY | OWNERS, "member": WORK | MONEY, "read_only": WORK | MONEY, "billing": MONEY}
CHANGES = {
    "owner": OPENS["owner"],
    "member": WORK,
    "read_only": set(),
    "billing": {"spending_spendcap"},
}


def sign_in(organization: Organization, role: str, name: str = "") -> Client:
    user = User.objects.create_user(name or f"{role}@{organization.pk}")
    Member.objects.create(organization=organization, user=user, role=role)
    client = Client(raise_request_exception=False)
    client.force_login(user, backend="django.contrib.auth.backends.ModelBackend")
    return client


def filled(organization: Organization) -> World:
    """Creates at least one object of each kind in the organization, and returns these objects."""
    world = World(organization)
    world.ids_of_all_objects()
    AuditEvent.objects.create(
        organization=organization, action="x", actor_type="user", actor_id="x", object_type="x", object_id="x"
    )
    return world


@dataclass(frozen=True, slots=True)
class Page:
    """A page or button of one row, or of a list."""

    model: type[Model]
    name: str  # "changelist", "change", or the name of a button

    @property
    def table(self) -> str:
        return f"{self.model._meta.app_label}_{self.model._meta.model_name}"

    def path(self, object_id: object = None) -> str:
        return reverse(f"admin:{self.table}_{self.name}", args=() if object_id is None else [quote(str(object_id))])


def pages(*, of_rows: bool) -> Iterator[Page]:
    """Yields all pages whose URL takes the id of a row, or, with `of_rows=False`, all other pages."""
    for model, page in admin.site._registry.items():
        for pattern in page.get_urls():
            name = (pattern.name or "").removeprefix(f"{model._meta.app_label}_{model._meta.model_name}_")
            if pattern.name and ("object_id" in str(pattern.pattern)) == of_rows and "password" not in name:
                yield Page(model, name)


def row_of(model: type[Model], organization: Organization) -> Model:
    page = admin.site._registry[model]
    assert isinstance(page, RowsAdmin)
    row = model._default_manager.filter(page.changeable_by(organization)).first()
    assert row is not None, f"{model} needs an example object"
    return row


def test_the_table_of_roles_covers_every_page() -> None:
    tables = {Page(model, "").table for model in admin.site._registry}
    assert tables == OPENS["owner"] | STAFF_PAGES


def test_responses_to_ids_of_foreign_rows_and_to_unknown_ids_are_equal() -> None:
    own, foreign = filled(make_organization()), filled(make_organization())
    client, num_checked = sign_in(own.organization, "owner"), 0
    for page in pages(of_rows=True):
        if page.table in STAFF_PAGES:
            existing = page.model._default_manager.values_list("pk", flat=True)[:1]
            assert {client.get(page.path(pk)).status_code for pk in (*existing, 0)} <= {403, 404}, page
            continue
        own_row, foreign_row = row_of(page.model, own.organization), row_of(page.model, foreign.organization)
        for send in (client.get, client.post):
            answers = []
            for object_id in (foreign_row.pk, type(foreign_row.pk)(UNKNOWN if isinstance(foreign_row.pk, str) else 0)):
                with CaptureQueriesContext(connection) as queries:
                    response = send(page.path(object_id), {"_form_submitted": "True"})
                answers.append((response.status_code, len(queries.captured_queries)))
            assert answers[0] == answers[1], page
            assert answers[0][0] in (403, 404), page
            if send == client.get and client.get(page.path(own_row.pk)).status_code == 200:
                assert answers[0][0] == 404, page
                num_checked += 1
    assert num_checked >= len(OPENS["owner"])


def test_no_page_shows_names_or_ids_of_another_organization() -> None:
    own, foreign = filled(make_organization("Ours")), filled(make_organization("Theirs-4711"))
    Organization.objects.filter(pk=foreign.organization.pk).update(name="Theirs-4711")
    client = sign_in(own.organization, "owner")
    sign_in(foreign.organization, "owner", "spy-4711@example.com")
    hidden = {"Theirs-4711", "spy-4711", foreign.organization.pk, *foreign.ids_of_all_objects().values()}
    paths = [page.path() for page in pages(of_rows=False) if page.table not in STAFF_PAGES]
    ids = f"{own.speculator.pk},{foreign.speculator.pk}"
    paths += [reverse("admin:index"), f"{reverse('speculators-compare')}?ids={ids}", "/admin/search/?s=theirs"]
    paths += [page.path(row_of(page.model, own.organization).pk) for page in pages(of_rows=True)
              if page.table not in STAFF_PAGES and page.name == "change"]  # fmt: skip
    for path in paths:
        response = client.get(path)
        assert response.status_code in (200, 403), path
        text = response.content.decode()
        assert [word for word in hidden if word in text] == [], path


def test_pages_of_the_whole_service_are_closed_to_members() -> None:
    organization = make_organization()
    client = sign_in(organization, "owner")
    for path in (reverse("queue"), reverse("admin:accounts_user_changelist"), reverse("admin:tenancy_limits_add")):
        assert client.get(path).status_code == 403
    assert client.get(reverse("admin:accounts_organization_add")).status_code == 403
    assert client.get("/admin/r/1/1/").status_code == 404


@pytest.mark.parametrize(
    "role",
    [
        "read_only",
        pytest.param("billing", marks=pytest.mark.wide),
        pytest.param("member", marks=pytest.mark.wide),
        pytest.param("owner", marks=pytest.mark.wide),
    ],
)
def test_each_role_opens_and_changes_only_the_pages_listed_for_it(role: str) -> None:
    world = filled(make_organization())
    client = sign_in(world.organization, role)
    for page in pages(of_rows=False):
        response = client.get(page.path())
        expected = OPENS[role] if page.name == "changelist" else CHANGES[role]
        if page.table not in expected:
            assert response.status_code == 403, page
        elif page.name == "changelist":
            assert response.status_code == 200, page
    for page in pages(of_rows=True):
        if page.table in STAFF_PAGES:
            continue
        path = page.path(row_of(page.model, world.organization).pk)
        if page.name in READS:
            assert client.get(path).status_code == (200 if page.table in OPENS[role] else 403), page
        if page.name != "history" and page.table not in CHANGES[role]:
            assert client.post(path, {"_form_submitted": "True"}).status_code == 403, page


def test_a_form_cannot_name_another_organization_or_its_objects() -> None:
    own, foreign = make_organization(), filled(make_organization())
    client = sign_in(own, "owner")
    for path, values in (
        (reverse("admin:accounts_project_add"), {"name": "x"}),
        (reverse("admin:accounts_apikey_add"), {"name": "x"}),
        (reverse("admin:spending_spendcap_add"), {"usd": "1"}),
    ):
        before = num_rows_of(foreign.organization)
        assert client.post(path, {**values, "organization": foreign.organization.pk}).status_code == 200
        assert num_rows_of(foreign.organization) == before
    # Forms that are generated from requests of the API ignore an organization in the query.
    client.post(f"{reverse('admin:accounts_member_add')}?organization={foreign.organization.pk}",
                {"email": "new@example.com", "role": "owner"})  # fmt: skip
    assert Member.objects.get(user__username="new@example.com").organization == own


def num_rows_of(organization: Organization) -> dict[str, int]:
    return {
        str(model): model._default_manager.filter(page.changeable_by(organization)).count()
        for model, page in admin.site._registry.items()
        if isinstance(page, RowsAdmin)
    }


def test_a_removed_member_is_signed_out_at_the_next_request() -> None:
    organization = make_organization()
    client = sign_in(organization, "member")
    assert client.get(reverse("admin:index")).status_code == 200

    Member.objects.all().delete()

    response = client.get(reverse("admin:index"))
    assert (response.status_code, response.headers["Location"]) == (302, reverse("account_login"))
    assert "_auth_user_id" not in client.session


def test_only_an_organization_of_the_user_can_be_chosen() -> None:
    first, second, foreign = make_organization("First"), make_organization("Second"), make_organization()
    client = sign_in(first, "owner", "ana@example.com")
    Member.objects.create(organization=second, user=User.objects.get(), role="read_only")
    choose = reverse("choose-organization")

    assert client.post(choose, {"organization": foreign.pk}).status_code == 404
    assert (
        change_path("accounts_organization", first.pk) in client.get("/admin/accounts/organization/").content.decode()
    )

    assert client.post(choose, {"organization": second.pk}).status_code == 302
    text = client.get("/admin/accounts/organization/").content.decode()
    assert change_path("accounts_organization", second.pk) in text
    assert change_path("accounts_organization", first.pk) not in text
    assert client.get(reverse("admin:accounts_member_changelist")).status_code == 403  # read_only in "Second"


def test_a_member_who_is_a_django_superuser_is_limited_to_the_role_like_every_member() -> None:
    client = sign_in(make_organization(), "read_only")
    User.objects.update(is_superuser=True)

    assert client.get(reverse("admin:accounts_user_changelist")).status_code == 403
    assert client.get(reverse("admin:accounts_apikey_changelist")).status_code == 403
    assert client.get(reverse("queue")).status_code == 403


def test_if_an_owner_requires_a_second_factor_members_must_set_it_up_before_they_see_a_page() -> None:
    organization = make_organization()
    owner, viewer = sign_in(organization, "owner"), sign_in(organization, "read_only")

    assert press(viewer, "accounts_organization", organization.pk, "require_two_factor") == 403
    assert press(owner, "accounts_organization", organization.pk, "require_two_factor") == 302

    assert AuditEvent.objects.get().action == "organization.two_factor"
    for client in (owner, viewer):
        for path in (reverse("admin:index"), reverse("admin:jobs_job_changelist"), reverse("queue")):
            response = client.get(path)
            assert (response.status_code, response.headers["Location"]) == (302, reverse("mfa_activate_totp"))
