"""Pages, actions and permissions of the console, which uses the same services as the API."""

import datetime as dt
import re
from pathlib import Path

import pytest
from django.contrib.admin import site
from django.contrib.admin.utils import quote
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from control.core.storage.backends import get_storage
from control.models.catalog.models import Speculator
from control.operations.console.base import RowsAdmin
from control.queue.jobs.models import Job, Worker
from control.queue.jobs.services import worker_beat
from control.serving.deployments.models import Deployment
from control.serving.deployments.states import State
from control.tenants.accounts.models import ApiKey, Member, Organization, User
from control.tenants.accounts.selectors import api_key_authenticate
from tests.control.factories import make_base_model, make_file, make_job, make_key, make_organization
from tests.control.operations.console.support import change_path, operator_client, page, press
from tests.control.serving.deployments.support import make_deployment, make_speculator


@pytest.fixture
def operator(db: None) -> Client:
    return operator_client()


@pytest.fixture
def onlooker(db: None) -> Client:
    """A member of staff without any permission."""
    client = Client()
    client.force_login(User.objects.create_user("onlooker", is_staff=True))
    return client


def make_rows() -> dict[str, object]:
    """Creates one row of every model that has a page, and maps the model's name in the path to the row's key."""
    organization = make_organization("Acme")
    model = make_base_model("tiny")
    speculator = make_speculator(model, organization)
    deployment = make_deployment(model, organization, speculator=speculator)
    return {
        "accounts_organization": organization.pk,
        "accounts_apikey": make_key(organization)[0].pk,
        "accounts_user": User.objects.get().pk,
        "accounts_member": Member.objects.create(organization=organization, user=User.objects.get()).pk,
        "files_file": make_file(organization).pk,
        "jobs_job": make_job(organization).pk,
        "catalog_basemodel": model.pk,
        "catalog_speculator": speculator.pk,
        "deployments_deployment": deployment.pk,
    }


def test_every_page_opens(operator: Client) -> None:
    for model, pk in make_rows().items():
        page(operator, reverse(f"admin:{model}_changelist"))
        page(operator, change_path(model, pk))
    page(operator, reverse("admin:index"))


def test_the_overview_counts_jobs_and_workers(operator: Client) -> None:
    make_job(status=Job.Status.RUNNING)
    make_job(status=Job.Status.FAILED)
    for name in ("jobs-1", "jobs-2"):
        worker_beat(worker=name, role="jobs")
    Worker.objects.filter(pk="jobs-2").update(heartbeat_at=timezone.now() - dt.timedelta(minutes=1))

    text = page(operator, reverse("admin:index"))

    cards = re.findall(r'card-title">([^<]+)<.*?card-count">(\d+)</span> ([^<]+)<', text, re.DOTALL)
    assert ("Jobs running", "1", "of 2") in cards
    assert ("Jobs failed", "1", "of 2") in cards
    assert ("Workers alive", "1", "of 2") in cards


def test_rows_that_only_services_may_change_cannot_be_edited_or_deleted(operator: Client) -> None:
    organization = make_organization("Acme")

    edited = operator.post(change_path("accounts_organization", organization.pk), {"name": "Evil"})
    deleted = operator.post(reverse("admin:jobs_job_delete", args=[make_job().pk]), {"post": "yes"})

    assert (edited.status_code, deleted.status_code) == (403, 403)
    assert Organization.objects.get(pk=organization.pk).name == "Acme"
    for model, admin in site._registry.items():
        assert model is User or isinstance(admin, RowsAdmin)


def test_the_secret_of_a_new_api_key_is_shown_once(operator: Client) -> None:
    organization = make_organization()

    response = operator.post(
        reverse("admin:accounts_apikey_add"), {"organization": organization.pk, "name": "ci"}, follow=True
    )

    (token,) = re.findall(r"sk_live_\w{44}", response.content.decode())
    key = api_key_authenticate(token)
    assert (key.organization, key.name) == (organization, "ci")
    assert token not in page(operator, reverse("admin:accounts_apikey_changelist"))
    assert token not in page(operator, change_path("accounts_apikey", key.pk))


def test_a_button_revokes_a_key(operator: Client) -> None:
    key, _ = make_key()

    assert press(operator, "accounts_apikey", key.pk, "revoke") == 302

    assert ApiKey.objects.get().revoked_at is not None
    assert f"{key.pk}/revoke" not in page(operator, change_path("accounts_apikey", key.pk))


def test_the_add_form_creates_an_organization(operator: Client) -> None:
    operator.post(reverse("admin:accounts_organization_add"), {"name": "Acme"})

    assert Organization.objects.get().name == "Acme"


def test_the_timeline_of_a_cancelled_job_shows_the_cancellation(operator: Client) -> None:
    job = make_job()

    assert press(operator, "jobs_job", job.pk, "cancel") == 302

    job.refresh_from_db()
    assert job.cancel_requested_at is not None
    assert "cancel_requested" in page(operator, change_path("jobs_job", job.pk))


def test_only_the_page_of_a_running_job_refreshes_itself(operator: Client) -> None:
    running = make_job(status=Job.Status.RUNNING, progress_done=3, progress_total=12, progress_unit="rows")
    ended = make_job(status=Job.Status.SUCCEEDED)

    text = page(operator, change_path("jobs_job", running.pk))

    assert f'data-live="{running.pk}-status" data-live-active="yes"' in text
    assert "width: 25.0%" in text
    assert "3 / 12 rows" in text
    assert 'data-live-active="yes"' not in page(operator, change_path("jobs_job", ended.pk))


def test_buttons_stop_and_start_a_deployment(operator: Client) -> None:
    deployment = make_deployment(make_base_model())
    text = page(operator, change_path("deployments_deployment", deployment.pk))
    assert (f"{quote(deployment.pk)}/stop" in text, f"{quote(deployment.pk)}/start" in text) == (True, False)

    press(operator, "deployments_deployment", deployment.pk, "stop")
    deployment.refresh_from_db()
    assert (deployment.desired_state, deployment.state) == (Deployment.Desired.STOPPED, State.STOPPING)

    press(operator, "deployments_deployment", deployment.pk, "start")
    deployment.refresh_from_db()
    assert (deployment.desired_state, deployment.state) == (Deployment.Desired.RUNNING, State.PROVISIONING)


def test_a_get_request_for_a_button_changes_nothing(operator: Client) -> None:
    """A GET only shows the dialog, so that a link on another page cannot stop an endpoint."""
    deployment = make_deployment(make_base_model())

    dialog = page(operator, reverse("admin:deployments_deployment_stop", args=[quote(deployment.pk)]))

    assert "csrfmiddlewaretoken" in dialog
    deployment.refresh_from_db()
    assert deployment.desired_state == Deployment.Desired.RUNNING


def test_a_button_pressed_from_another_site_does_nothing(operator: Client) -> None:
    deployment = make_deployment(make_base_model())
    operator.handler.enforce_csrf_checks = True

    assert press(operator, "deployments_deployment", deployment.pk, "stop") == 403

    deployment.refresh_from_db()
    assert deployment.desired_state == Deployment.Desired.RUNNING


def test_a_button_is_refused_without_the_permission(onlooker: Client) -> None:
    deployment = make_deployment(make_base_model())

    assert press(onlooker, "deployments_deployment", deployment.pk, "stop") == 403

    deployment.refresh_from_db()
    assert deployment.desired_state == Deployment.Desired.RUNNING


def test_a_speculators_report_is_shown_as_a_table(operator: Client) -> None:
    report = {
        "acceptance_length": 2.1234567,
        "outputs_equal": 32,
        "concurrencies": [{"concurrency": 4, "speedup": 1.4444444, "repeats": [{"nested": 1}]}],
        "by_phase": [{"decode_speedup": None, "phase": "thinking"}, {"decode_speedup": 1.75, "phase": "answering"}],
        "by_context": [{"passes": 7, "context_to": 2048, "context_from": 512}],
    }
    speculator = make_speculator(make_base_model(), make_organization(), report=report, plot_key="plots/one.png")

    text = re.sub(r"\s+", " ", page(operator, change_path("catalog_speculator", speculator.pk)))

    assert "<td>acceptance length</td><td>2.123</td>" in text
    assert "<td>4</td><td>1.444</td>" in text
    assert "<td>thinking</td><td>–</td>" in text
    assert "<td>answering</td><td>1.75</td>" in text
    assert "<td>512</td><td>2,048</td><td>7</td>" in text
    assert f'src="/admin/speculators/{speculator.pk}/plot"' in text


def test_only_operators_see_a_plot(operator: Client, onlooker: Client, tmp_path: Path) -> None:
    (tmp_path / "report.png").write_bytes(b"\x89PNG")
    get_storage().put_file("plots/report.png", tmp_path / "report.png")
    speculator = make_speculator(make_base_model(), make_organization(), plot_key="plots/report.png")
    path = reverse("speculator-plot", args=[speculator.pk])

    response = operator.get(path)

    assert (response.status_code, b"".join(response)) == (200, b"\x89PNG")
    assert onlooker.get(path).status_code == 404
    assert Client().get(path).status_code == 302  # redirects to the sign-in page


def test_a_plot_that_is_not_stored_is_not_found(operator: Client) -> None:
    speculator = make_speculator(make_base_model(), make_organization())
    path = reverse("speculator-plot", args=[speculator.pk])

    assert operator.get(path).status_code == 404
    Speculator.objects.update(plot_key="plots/gone.png")
    assert operator.get(path).status_code == 404


def test_without_a_sign_in_every_page_redirects_to_the_sign_in_page(db: None) -> None:
    for path in (reverse("admin:index"), reverse("admin:jobs_job_changelist")):
        response = Client().get(path)
        assert (response.status_code, response.headers["location"].split("?")[0]) == (302, "/admin/login/")


def test_a_sign_in_without_a_requested_page_redirects_to_the_overview(client: Client, db: None) -> None:
    User.objects.create_superuser("ana", password="correct horse")

    response = client.post(reverse("admin:login"), {"username": "ana", "password": "correct horse"})

    assert (response.status_code, response.headers["Location"]) == (302, reverse("admin:index"))
