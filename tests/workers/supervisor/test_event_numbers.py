"""Readers of the event feed miss no event, in whatever order other transactions commit, on both databases."""

import threading
from random import Random

import pytest
from django.db import transaction

from control.tenants.accounts.models import Organization
from control.tenants.events.models import Event
from control.tenants.events.selectors import events_list
from control.tenants.events.services import event_record, events_number
from tests.databases import needs_postgres
from tests.workers.supervisor.live import LiveStack
from tests.workers.supervisor.test_races import in_thread

NUM_WRITERS, EVENTS_EACH, NUM_READERS = 4, 30, 3


def record(organization: Organization, object_id: str) -> Event:
    """Records an event. The caller must have begun a transaction."""
    return event_record(organization_id=organization.pk, project_id=None, type="batch.completed", object_id=object_id)


def read_after(organization: Organization, seq: int) -> list[tuple[int, str]]:
    """Returns number and object of the events after `seq`, which it reads as a poll of the feed does."""
    events_number(organization)
    events = events_list(organization).filter(seq__gt=seq).order_by("seq")
    return [(event.seq or 0, event.object_id) for event in events]


@pytest.mark.parametrize("database_kind", [needs_postgres("postgresql")])
def test_a_reader_misses_no_event_of_a_transaction_that_began_earlier_and_commits_later(stack: LiveStack) -> None:
    is_written, may_commit = threading.Event(), threading.Event()
    numbers = dict[str, int]()

    def write_first_and_commit_last() -> None:
        with transaction.atomic():
            numbers["first"] = record(stack.organization, "first").number
            is_written.set()
            assert may_commit.wait(60)

    writer = in_thread(write_first_and_commit_last)
    assert is_written.wait(60)
    with transaction.atomic():
        numbers["second"] = record(stack.organization, "second").number
    before = read_after(stack.organization, 0)
    may_commit.set()
    writer.join()

    assert numbers["first"] < numbers["second"]
    assert before == [(1, "second")]
    assert read_after(stack.organization, 1) == [(2, "first")]


@pytest.mark.parametrize("database_kind", ["sqlite", needs_postgres("postgresql")])
def test_concurrent_readers_get_each_event_once_in_the_same_order(stack: LiveStack) -> None:
    """Every reader continues after the last event that it has seen, while writers commit in any order."""
    num_events = NUM_WRITERS * EVENTS_EACH
    seen: list[list[tuple[int, str]]] = [[] for _ in range(NUM_READERS)]
    start, failed = threading.Barrier(NUM_WRITERS + NUM_READERS), threading.Event()

    def write(writer: int) -> None:
        random = Random(writer)
        start.wait()
        for number in range(0, EVENTS_EACH, 3):
            with transaction.atomic():
                for event in range(number, number + 3):
                    record(stack.organization, f"{writer}-{event}")
                    failed.wait(random.uniform(0, 0.01))  # so that transactions overlap

    def read(reader: int) -> None:
        start.wait()
        try:
            while len(seen[reader]) < num_events and not failed.is_set():
                last = seen[reader][-1][0] if seen[reader] else 0
                seen[reader] += read_after(stack.organization, last)
        except BaseException:
            failed.set()
            raise

    for thread in [
        *(in_thread(lambda n=n: write(n)) for n in range(NUM_WRITERS)),  # type: ignore[misc]
        *(in_thread(lambda n=n: read(n)) for n in range(NUM_READERS)),  # type: ignore[misc]
    ]:
        thread.join(120)
        if thread.is_alive():
            failed.set()  # a reader waits for an event that it has missed
            thread.join()

    assert [seq for seq, _ in seen[0]] == list(range(1, num_events + 1))
    assert all(events == seen[0] for events in seen)
    for writer in range(NUM_WRITERS):
        of_writer = [object_id for _, object_id in seen[0] if object_id.startswith(f"{writer}-")]
        assert of_writer == [f"{writer}-{number}" for number in range(EVENTS_EACH)]
