"""Promise W1 of docs/reliability.md: every event is delivered despite failures, and in order for each object."""

import datetime as dt
import random
from collections import defaultdict
from email.utils import format_datetime
from itertools import pairwise

import pytest
from django.db import transaction

from control.tenants.accounts.models import Organization
from control.tenants.events.models import Event
from control.tenants.events.services import event_record
from control.tenants.webhooks.models import WebhookDelivery, WebhookEndpoint
from control.tenants.webhooks.schedule import PAUSES, next_attempt
from control.tenants.webhooks.sender import CLAIM_DURATION, Sender
from control.tenants.webhooks.services import delivery_replay, endpoint_test, endpoint_update
from control.tenants.webhooks.transport import ReceiverResponse
from tests.control.tenants.webhooks.support import (
    HOUR,
    MAX_DELAY_RATIO,
    MINUTE,
    SECOND,
    START,
    Clock,
    Receiver,
    make_endpoint,
    record_event,
    send_due_deliveries,
)

Disabled = WebhookEndpoint.Disabled


class SenderKilled(BaseException):
    """Simulates `kill -9`. It is not an Exception, so that no `except Exception` can catch it."""


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def receiver(clock: Clock) -> Receiver:
    return Receiver(clock)


@pytest.fixture
def sender(receiver: Receiver, clock: Clock) -> Sender:
    return Sender(send=receiver, clock=clock)


def the_delivery() -> WebhookDelivery:
    return WebhookDelivery.objects.get()


def test_an_event_that_is_rolled_back_is_never_sent(organization: Organization, sender: Sender) -> None:
    make_endpoint(organization)

    with transaction.atomic():
        event_record(organization_id=organization.pk, project_id=None, type="batch.completed", object_id="batch_1")
        transaction.set_rollback(True)

    assert (send_due_deliveries(sender), WebhookDelivery.objects.count()) == (0, 0)


def test_an_endpoint_receives_only_events_of_its_organization_that_it_has_subscribed_to(
    organization: Organization, other_organization: Organization, sender: Sender, receiver: Receiver
) -> None:
    make_endpoint(organization, "batch.*", "job.succeeded")
    make_endpoint(other_organization)

    for kind in ("batch.completed", "job.succeeded", "job.failed", "pipeline.live"):
        record_event(organization, f"of {kind}", kind)
    send_due_deliveries(sender)

    assert {call.event["type"] for call in receiver.calls} == {"batch.completed", "job.succeeded"}


def test_a_receiver_that_was_down_for_two_minutes_gets_all_events_in_order(
    organization: Organization, sender: Sender, receiver: Receiver, clock: Clock
) -> None:
    make_endpoint(organization)
    receiver.respond = lambda self: ReceiverResponse(status=200 if self.clock.now >= START + 2 * MINUTE else 503)
    expected = defaultdict(list)
    for number in range(40):
        event = record_event(organization, f"batch_{number % 4}", "batch.in_progress")
        expected[event.object_id].append(event.id)

    while clock.now < START + HOUR:
        send_due_deliveries(sender)
        clock.now += 5 * SECOND

    arrived = defaultdict(list)
    for call in receiver.received:
        arrived[call.event["data"]["id"]].append(call.headers["webhook-id"])
    assert arrived == expected
    assert len(receiver.calls) > len(receiver.received), "the receiver must have refused some calls"


def test_ten_killed_senders_lose_no_event(
    organization: Organization, sender: Sender, receiver: Receiver, clock: Clock
) -> None:
    """Each sender is killed before or after the receiver gets the delivery, but before the result is recorded."""
    make_endpoint(organization)
    rng = random.Random(0)
    events = [record_event(organization, f"batch_{number % 3}") for number in range(30)]
    num_kills = 0

    def kill_now_and_then(self: Receiver) -> ReceiverResponse:
        nonlocal num_kills
        if num_kills < 10 and rng.random() < 0.5:
            num_kills += 1
            if rng.random() < 0.5:
                self.received.append(self.calls[-1])
            raise SenderKilled
        return ReceiverResponse(status=200)

    receiver.respond = kill_now_and_then
    while WebhookDelivery.objects.filter(status="pending").exists():
        try:
            send_due_deliveries(sender)
        except SenderKilled:
            continue
        clock.now += CLAIM_DURATION  # the claims of killed senders expire

    distinct_ids = list(dict.fromkeys(call.headers["webhook-id"] for call in receiver.received))
    assert num_kills == 10
    assert set(distinct_ids) == {event.id for event in events}
    ids_by_object: dict[str, list[str]] = defaultdict(list)
    for event in events:
        ids_by_object[event.object_id].append(event.id)
    for ids in ids_by_object.values():
        assert [identity for identity in distinct_ids if identity in ids] == ids


def test_a_delivery_that_a_sender_has_claimed_is_not_sent_by_another(
    organization: Organization, sender: Sender, receiver: Receiver, clock: Clock
) -> None:
    make_endpoint(organization)
    record_event(organization, "batch_1")
    delivery = the_delivery()

    def try_a_second_delivery(self: Receiver) -> ReceiverResponse:
        assert not sender.deliver(delivery.pk), "a delivery must not be sent twice at the same time"
        return ReceiverResponse(status=200)

    receiver.respond = try_a_second_delivery
    assert sender.deliver(delivery.pk)
    assert len(receiver.calls) == 1


def test_all_attempts_have_the_same_id_and_follow_the_schedule(
    organization: Organization, sender: Sender, receiver: Receiver, clock: Clock
) -> None:
    make_endpoint(organization)
    event = record_event(organization, "batch_1")
    receiver.respond = lambda _: ReceiverResponse(status=500)

    while the_delivery().status == "pending":
        send_due_deliveries(sender)
        clock.now = max(clock.now + SECOND, the_delivery().next_attempt_at)

    times = [call.at for call in receiver.calls]
    assert {call.headers["webhook-id"] for call in receiver.calls} == {event.id}
    assert {call.headers["webhook-timestamp"] for call in receiver.calls} == {str(int(at.timestamp())) for at in times}
    assert len(times) == len(PAUSES)
    for (earlier, later), pause in zip(pairwise(times), PAUSES[1:], strict=True):
        assert pause <= later - earlier <= MAX_DELAY_RATIO * pause + SECOND
    assert [entry["status_code"] for entry in the_delivery().history] == [500] * len(PAUSES)


def test_an_endpoint_that_fails_for_days_is_disabled_and_an_event_reports_it(
    organization: Organization, sender: Sender, receiver: Receiver, clock: Clock
) -> None:
    endpoint, _ = make_endpoint(organization)
    record_event(organization, "batch_1")
    receiver.respond = lambda _: ReceiverResponse(status=None, error="connection_failed")

    while the_delivery().status == "pending":
        send_due_deliveries(sender)
        clock.now = max(clock.now + SECOND, the_delivery().next_attempt_at)

    endpoint.refresh_from_db()
    assert endpoint.disabled == Disabled.FAILING
    assert Event.objects.filter(type="webhook_endpoint.disabled", object_id=endpoint.pk).count() == 1
    assert not WebhookDelivery.objects.exclude(event__object_id="batch_1").exists(), (
        "the disabled endpoint must not get the event of its own disabling"
    )


@pytest.mark.parametrize(
    ("status", "succeeds"),
    [(200, True), (204, True), (299, True), (301, False), (302, False), (304, False), (404, False), (503, False)],
)
def test_only_a_status_of_2xx_is_a_success(
    status: int, succeeds: bool, organization: Organization, sender: Sender, receiver: Receiver
) -> None:
    make_endpoint(organization)
    record_event(organization, "batch_1")
    receiver.respond = lambda _: ReceiverResponse(status=status)

    send_due_deliveries(sender)

    assert (the_delivery().status == "succeeded") is succeeds
    assert (the_delivery().status == "pending") is not succeeds


def test_status_410_disables_the_endpoint_at_once(
    organization: Organization, sender: Sender, receiver: Receiver
) -> None:
    endpoint, _ = make_endpoint(organization)
    record_event(organization, "batch_1")
    record_event(organization, "batch_2")
    receiver.respond = lambda _: ReceiverResponse(status=410)

    send_due_deliveries(sender)
    record_event(organization, "batch_3")

    endpoint.refresh_from_db()
    assert endpoint.disabled == Disabled.GONE
    assert (len(receiver.calls), send_due_deliveries(sender)) == (1, 0)


def test_events_for_a_disabled_endpoint_are_sent_when_it_is_enabled_again(
    organization: Organization, sender: Sender, receiver: Receiver
) -> None:
    endpoint, _ = make_endpoint(organization)
    event = record_event(organization, "batch_1")
    endpoint_update(endpoint=endpoint, changes={"enabled": False})
    assert send_due_deliveries(sender) == 0

    endpoint_update(endpoint=endpoint, changes={"enabled": True})
    send_due_deliveries(sender)

    assert [call.headers["webhook-id"] for call in receiver.received] == [event.id]


@pytest.mark.parametrize(
    ("retry_after", "earliest"),
    [
        ("120", 120 * SECOND),
        (format_datetime(START + 10 * MINUTE, usegmt=True), 10 * MINUTE),
        ("99999999999999", 24 * HOUR),
        ("1", 5 * SECOND),  # without `Retry-After`, the pause before the second attempt is 5 s
        ("-5", 5 * SECOND),
        ("soon", 5 * SECOND),
        ("٣", 5 * SECOND),  # an Arabic digit
        (None, 5 * SECOND),
    ],
)
def test_retry_after_can_delay_the_next_attempt_but_not_make_it_earlier(
    retry_after: str | None, earliest: dt.timedelta
) -> None:
    next_time = next_attempt(attempts=1, now=START, retry_after=retry_after)

    assert next_time is not None
    assert earliest <= next_time - START <= max(earliest, MAX_DELAY_RATIO * PAUSES[1])


def test_an_event_waits_for_earlier_events_of_its_object_but_not_for_other_objects(
    organization: Organization, sender: Sender, receiver: Receiver, clock: Clock
) -> None:
    make_endpoint(organization)
    first, second = record_event(organization, "batch_1"), record_event(organization, "batch_1", "batch.failed")
    other = record_event(organization, "batch_2")
    receiver.respond = lambda self: ReceiverResponse(status=500 if len(self.calls) == 1 else 200)

    send_due_deliveries(sender)
    assert [call.headers["webhook-id"] for call in receiver.received] == [other.id]

    clock.now += MINUTE
    send_due_deliveries(sender)
    assert [call.headers["webhook-id"] for call in receiver.received] == [other.id, first.id, second.id]


def test_a_replay_sends_the_same_event_again(organization: Organization, sender: Sender, receiver: Receiver) -> None:
    make_endpoint(organization)
    event = record_event(organization, "batch_1")
    send_due_deliveries(sender)

    delivery_replay(delivery=the_delivery())
    WebhookDelivery.objects.update(next_attempt_at=START)
    send_due_deliveries(sender)

    assert [call.headers["webhook-id"] for call in receiver.received] == [event.id, event.id]
    assert len(the_delivery().history) == 2


def test_a_test_event_is_sent_only_to_its_endpoint(
    organization: Organization, sender: Sender, receiver: Receiver
) -> None:
    endpoint, _ = make_endpoint(organization, "job.failed")
    make_endpoint(organization)

    delivery = endpoint_test(endpoint=endpoint)
    WebhookDelivery.objects.update(next_attempt_at=START)
    send_due_deliveries(sender)

    assert [call.event["type"] for call in receiver.received] == ["webhook_endpoint.test"]
    assert the_delivery().pk == delivery.pk


def test_a_delivery_that_kills_its_sender_at_every_attempt_fails(
    organization: Organization, sender: Sender, receiver: Receiver, clock: Clock
) -> None:
    make_endpoint(organization)
    record_event(organization, "batch_1")

    def die(_: Receiver) -> ReceiverResponse:
        raise SenderKilled

    receiver.respond = die
    for _ in PAUSES:
        with pytest.raises(SenderKilled):
            send_due_deliveries(sender)
        clock.now += CLAIM_DURATION
    send_due_deliveries(sender)

    assert (the_delivery().status, len(receiver.calls)) == ("failed", len(PAUSES))
