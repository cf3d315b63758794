"""The transaction of an idempotent request is short: it does not last while the request stores or reads files.

The tests run on the database of the test run; `make test-wide` runs them on PostgreSQL.
"""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.db import connection, transaction

from control.core.storage.backends import FolderStorage
from control.core.transactions import change, transaction_from_first_change
from control.data.files.models import File
from control.queue.jobs.models import Job
from control.queue.jobs.services import job_submit
from control.tenants.accounts.models import Organization
from control.tenants.row_security.scope import Across, across_tenants
from tests.control.factories import chat_row, client_of, make_base_model, make_file, make_organization

AT_ONCE_SECONDS = 2.0  # a writer that waited for the transaction would wait as long as the storage does


class SlowStorage:
    """Makes storage slow: after the first `num_fast` files, the next file waits until `finish` is called."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, num_fast: int = 0) -> None:
        remaining_fast = iter(range(num_fast))
        self.is_writing, self._may_finish = threading.Event(), threading.Event()
        put_file = FolderStorage.put_file

        def put_file_slowly(storage: FolderStorage, key: str, path: Path) -> None:
            if next(remaining_fast, None) is None:
                self.is_writing.set()
                assert self._may_finish.wait(30)
            put_file(storage, key, path)

        monkeypatch.setattr(FolderStorage, "put_file", put_file_slowly)

    def finish(self) -> None:
        self._may_finish.set()


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as threads:
        yield threads


def in_thread(pool: ThreadPoolExecutor, work: Callable[[], Any]) -> "Future[Any]":
    def run() -> Any:
        try:
            with across_tenants(Across.COMMAND):
                return work()
        finally:
            connection.close()

    return pool.submit(run)


def check_others_write_at_once(organization: Organization, storage: SlowStorage, request: "Future[Any]") -> Any:
    """Writes for the same organization while the request is storing its file. Returns the response to the request."""
    try:
        assert storage.is_writing.wait(20), request.result(1)
        began = time.monotonic()
        job_submit(organization=organization, kind=Job.Kind.BATCH, params={})
        assert time.monotonic() - began < AT_ONCE_SECONDS
    finally:
        storage.finish()
    response = request.result(30)
    assert response.status_code < 300, response.content
    return response


@pytest.mark.django_db(transaction=True)
def test_other_writers_do_not_wait_while_an_idempotent_upload_is_being_stored(
    pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    organization = make_organization()
    client, storage = client_of(organization), SlowStorage(monkeypatch)
    form = {"purpose": "batch", "file": SimpleUploadedFile("in.jsonl", b"{}\n")}

    request = in_thread(pool, lambda: client.post("/v1/files", form, headers={"Idempotency-Key": "once"}))

    response = check_others_write_at_once(organization, storage, request)
    form = {"purpose": "batch", "file": SimpleUploadedFile("in.jsonl", b"{}\n")}
    again = client.post("/v1/files", form, headers={"Idempotency-Key": "once"})
    assert again["Idempotency-Replayed"] == "true"
    assert again.content == response.content
    assert File.objects.count() == 1


@pytest.mark.django_db(transaction=True)
def test_other_writers_do_not_wait_while_an_idempotent_pipeline_request_divides_its_prompts(
    pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    organization = make_organization()
    make_base_model("tiny")
    file = make_file(organization, [chat_row(f"row-{number}") for number in range(10)])
    client, storage = client_of(organization), SlowStorage(monkeypatch, num_fast=2)  # training and held-out prompts
    body = {"name": "fast", "model": "tiny", "prompts_file": file.pk, "training": {"kind": "medusa"}}
    headers = {"Idempotency-Key": "once"}

    def post() -> Any:
        return client.post("/v1/pipelines", body, content_type="application/json", headers=headers)

    check_others_write_at_once(organization, storage, in_thread(pool, post))

    assert post()["Idempotency-Replayed"] == "true"
    assert File.objects.filter(organization=organization).count() == 3


@pytest.mark.django_db(transaction=True)
def test_all_changes_of_a_request_are_rolled_back_together_if_it_fails_after_the_last_change() -> None:
    def work() -> None:
        with transaction_from_first_change():
            assert not transaction.get_connection().in_atomic_block
            for _ in range(2):
                with change():
                    make_organization()
                assert transaction.get_connection().in_atomic_block
            raise RuntimeError("before the response")

    with pytest.raises(RuntimeError):
        work()

    assert not Organization.objects.exists()
    with change():
        make_organization()
    assert Organization.objects.count() == 1
