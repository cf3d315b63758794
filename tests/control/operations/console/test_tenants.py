"""Pages of organizations with their limits and webhooks, of the queue, of all devices and of compared speculators."""

import datetime as dt
import re
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone
from pytest_django import Settings

from control.billing.usage.models import UsageRecord
from control.queue.devices.models import Device, EndpointLease
from control.queue.devices.services import devices_register
from control.queue.jobs.models import Job
from control.queue.jobs.services import job_claim_next, worker_beat
from control.serving.deployments.services import deployment_create
from control.tenants.accounts.models import User
from control.tenants.audit.models import AuditEvent
from control.tenants.quotas.models import Limits
from control.tenants.quotas.quota import quota_of
from control.tenants.webhooks.models import WebhookDelivery, WebhookEndpoint
from control.tenants.webhooks.services import endpoint_create, endpoint_test
from tests.control.factories import make_base_model, make_job, make_key, make_organization
from tests.control.operations.console.support import change_path, operator_client, page, press
from tests.control.queue.devices.helpers import GB, cpu, gpu, state
from tests.control.serving.deployments.support import make_speculator

pytestmark = pytest.mark.django_db


@pytest.fixture
def operator() -> Client:
    return operator_client()


@pytest.fixture
def onlooker() -> Client:
    client = Client()
    client.force_login(User.objects.create_user("onlooker", is_staff=True))
    return client


def make_delivery() -> WebhookDelivery:
    endpoint, _ = endpoint_create(organization=make_organization(), url="https://93.184.216.34/hook", events=["*"])
    return endpoint_test(endpoint=endpoint)


def collapse_spaces(text: str) -> str:
    return re.sub(r"\s+", " ", text)


def test_an_organizations_page_shows_only_its_own_usage(operator: Client) -> None:
    own, other = make_organization("Ours"), make_organization("Other")
    for organization, tokens in ((own, 1234), (other, 777777)):
        UsageRecord.objects.create(
            organization=organization,
            minute=timezone.now(),
            model="m",
            is_batch=False,
            input_tokens=tokens,
            requests=2,
            input_nanousd=1_500_000_000,
        )
    make_key(other, scopes=["usage:read"])

    text = collapse_spaces(page(operator, change_path("accounts_organization", own.pk)))

    assert "<td>total</td><td>2</td><td>1,234</td><td>0</td><td>0</td><td>1.50</td>" in text
    assert "777,777" not in text
    assert "usage:read" not in text


def test_a_form_sets_limits_and_the_audit_event_names_the_operator(operator: Client) -> None:
    organization = make_organization()
    page(operator, f"{reverse('admin:tenancy_limits_add')}?organization={organization.pk}")

    operator.post(reverse("admin:tenancy_limits_add"), {"organization": organization.pk, "queued_jobs": 7})

    assert quota_of(organization.pk).queued_jobs == 7
    event = AuditEvent.objects.get()
    assert (event.action, event.organization, event.actor_id) == ("limits.set", organization, "operator")
    assert change_path("tenancy_limits", Limits.objects.get().pk) in page(
        operator, change_path("accounts_organization", organization.pk)
    )


def test_a_webhook_delivery_is_replayed_and_the_audit_event_names_the_operator(operator: Client) -> None:
    delivery = make_delivery()
    WebhookDelivery.objects.update(status=WebhookDelivery.Status.FAILED, attempt=9)
    assert change_path("webhooks_webhookdelivery", delivery.pk) in page(
        operator, change_path("webhooks_webhookendpoint", delivery.endpoint_id)
    )

    assert press(operator, "webhooks_webhookdelivery", delivery.pk, "replay") == 302

    delivery.refresh_from_db()
    assert (delivery.status, delivery.attempt) == ("pending", 0)
    event = AuditEvent.objects.get()
    assert (event.action, event.object_id, event.actor_id) == ("webhook_delivery.replay", delivery.pk, "operator")


def test_a_button_enables_a_disabled_webhook_endpoint(operator: Client) -> None:
    endpoint = make_delivery().endpoint
    WebhookEndpoint.objects.update(disabled=WebhookEndpoint.Disabled.FAILING)

    assert press(operator, "webhooks_webhookendpoint", endpoint.pk, "enable") == 302

    assert WebhookEndpoint.objects.get().disabled == ""
    assert AuditEvent.objects.get().action == "webhook_endpoint.update"


def test_the_page_of_a_webhook_endpoint_does_not_show_its_secret(operator: Client) -> None:
    endpoint, secret = endpoint_create(organization=make_organization(), url="https://93.184.216.34/", events=["*"])

    assert secret.removeprefix("whsec_") not in page(operator, change_path("webhooks_webhookendpoint", endpoint.pk))


def test_audit_events_cannot_be_added_or_changed(operator: Client) -> None:
    operator.post(reverse("admin:accounts_organization_add"), {"name": "Acme"})
    path = change_path("audit_auditevent", AuditEvent.objects.get().pk)

    assert "organization.create" in page(operator, path)
    assert operator.post(path, {"action": "other"}).status_code == 403
    assert operator.get(reverse("admin:audit_auditevent_add")).status_code == 403


def test_the_queue_shows_waiting_jobs_expired_leases_and_workers(operator: Client) -> None:
    now, organization = timezone.now(), make_organization("Acme")
    waiting = [make_job(organization) for _ in range(2)]
    Job.objects.filter(pk=waiting[0].pk).update(created_at=now - dt.timedelta(hours=1))
    make_job(organization, not_before=now + dt.timedelta(hours=1))
    make_job(organization, status="running", worker="w1", lease_until=now - dt.timedelta(minutes=2))
    worker_beat(worker="w1", role="jobs")

    text = collapse_spaces(page(operator, reverse("queue")))

    # Two jobs are due, and the older one has waited for an hour. The running job's lease expired two minutes ago.
    assert re.search(r"<td>Acme</td><td>2</td><td>1:00:0\d</td>", text)
    assert "back off before another attempt: 1" in text
    assert re.search(r"console-danger\">-0:0(2:0|1:5)\d<", text)
    assert re.search(r"<td>w1</td>.*console-success\">0:00:0\d ago", text)


def test_the_pool_shows_which_job_holds_which_device_at_what_price(operator: Client, settings: Settings) -> None:
    job = make_job(make_organization("Acme"), memory_needed={"cuda": GB})
    state(settings, gpu(80, price_per_hour=2.5), gpu(40, index=1), machine="rack-1")
    devices_register()
    state(settings, cpu(16), machine="gone")
    devices_register()
    Device.objects.filter(machine="gone").update(lease_until=timezone.now() - dt.timedelta(seconds=1))
    state(settings, gpu(80, price_per_hour=2.5), machine="rack-1")
    assert job_claim_next(worker="w1") is not None

    text = collapse_spaces(page(operator, reverse("pool")))

    rows = re.findall(r"<tr> ?<td>(?:gone|rack-1)</td>.*?</tr>", text)
    gone, held, free = [re.sub(r"\s*<[^>]+>\s*", " ", row).split() for row in rows]
    assert gone == ["gone", "cpu:0", "–", "14.9", "GB", "–", "–", "0", "%", "0", "%", "lost"]
    assert held[:6] == ["rack-1", "cuda:0", "H100", "74.5", "GB", "2.50"]
    assert {job.pk, "Acme,"} <= {*held}
    assert held[-1] == "held"
    assert free == ["rack-1", "cuda:1", "H100", "37.3", "GB", "–", "–", "0", "%", "0", "%", "free"]


def test_the_pool_shows_which_endpoint_holds_a_device_and_for_how_long(operator: Client, settings: Settings) -> None:
    organization = make_organization("Acme")
    deployment = deployment_create(organization=organization, name="chat", base_model=make_base_model())
    state(settings, gpu(80), machine="rack-1")
    devices_register()
    EndpointLease.objects.create(
        device=Device.objects.get(),
        organization=organization,
        deployment_id=deployment.pk,
        replica=f"{deployment.pk}-2",
        fence=1,
        since=timezone.now() - dt.timedelta(minutes=45),
    )

    text = collapse_spaces(re.sub("<[^>]+>", " ", page(operator, reverse("pool"))))

    assert "0 of 1 devices are free" in text
    assert re.search(r"chat of Acme, replica 2, for 45.minutes, since 20\S+ 75 % 3 % held", text)


def test_the_pool_has_pages_and_its_number_of_queries_does_not_grow(
    operator: Client, settings: Settings, django_assert_max_num_queries: Any
) -> None:
    state(settings, *(gpu(80, index=index) for index in range(130)), machine="rack-1")
    devices_register()
    organization = make_organization()
    for _ in range(3):
        make_job(organization, memory_needed={"cuda": GB})
        assert job_claim_next(worker="w1") is not None

    with django_assert_max_num_queries(30):
        first = page(operator, reverse("pool"))

    assert first.count("<td>rack-1</td>") == 100
    assert page(operator, f"{reverse('pool')}?page=2").count("<td>rack-1</td>") == 30


def test_speculators_are_compared_side_by_side(operator: Client) -> None:
    organization, model = make_organization(), make_base_model()
    speculators = [
        make_speculator(model, organization, name=f"s{length}", report={"acceptance_length": length, "zebra": 1})
        for length in (1.5, 2.5)
    ]

    selected = operator.post(
        reverse("admin:catalog_speculator_changelist"),
        {"action": "compare", "_selected_action": [row.pk for row in speculators]},
    )
    assert all(row.pk in selected.headers["location"] for row in speculators)

    text = collapse_spaces(
        page(operator, f"{reverse('speculators-compare')}?ids={speculators[1].pk},{speculators[0].pk},spec_unknown")
    )
    assert "<td>acceptance length</td><td>2.5</td><td>1.5</td>" in text
    # Entries of the report that are not in `compare.FIRST` come last.
    assert text.index("acceptance length") < text.index("zebra")


def test_the_queue_and_the_comparison_need_a_permission(onlooker: Client) -> None:
    for name in ("queue", "pool", "speculators-compare"):
        assert onlooker.get(reverse(name)).status_code == 403
        assert Client().get(reverse(name)).status_code == 302
