"""Real workers with simulated devices claim only jobs that fit, and take over the job of a killed worker."""

import json
import subprocess
import threading
from dataclasses import asdict
from typing import Any

import pytest
from django.conf import settings
from django.db import connection

from control.models.catalog.models import BaseModel
from control.queue.devices.models import Device
from control.queue.devices.selectors import devices_present, leases_valid
from control.queue.devices.services import devices_register
from control.queue.jobs.models import Job, JobEvent
from control.queue.jobs.services import job_claim_next, job_submit
from control.queue.jobs.state import Claim
from control.tenants.row_security.scope import Across, across_tenants
from control.workflows.batches.models import Batch
from control.workflows.batches.services import batch_create
from tests.control.factories import chat_row, make_base_model, make_file
from tests.control.queue.devices.helpers import GB, gpu
from tests.databases import needs_postgres
from tests.workers.supervisor.live import MAX_TOKENS, LiveStack, kill_9
from tests.workers.supervisor.test_celery_worker import CELERY
from tests.workers.supervisor.test_worker_process import expected_output, output_of
from tests.workers.test_planning import QWEN_32B, SMOLLM2
from workers.model_sizes import ModelSizes

BOTH = pytest.mark.parametrize("database_kind", ["sqlite", needs_postgres("postgresql")])


def make_model(stack: LiveStack, config: dict[str, object]) -> BaseModel:
    model = make_base_model()
    model.path, model.sizes = stack.base_model.path, asdict(ModelSizes.of(config))
    model.save()
    return model


def start_worker(stack: LiveStack, machine: str, gigabytes: int, **options: Any) -> subprocess.Popen[bytes]:
    """Starts a Celery worker on a machine with one simulated GPU of this size."""
    device = {"kind": "cuda", "model": f"simulated {gigabytes} GB", "memory_bytes": gigabytes * GB}
    stack.environment |= {"SLIPSTREAM_NODE_NAME": machine, "SLIPSTREAM_DEVICES": json.dumps([device])}
    return stack.start_worker(*CELERY, **options)


def make_batch(stack: LiveStack, model: BaseModel, contents: list[str]) -> Batch:
    stack.base_model = model
    return stack.make_batch(contents)


def claims_of(job_id: str) -> list[tuple[int, str]]:
    """Returns the fences of the job's claims, each with the process id of the worker."""
    events = JobEvent.objects.filter(job_id=job_id, type="claimed").order_by("seq")
    return [(event.data["fence"], event.data["worker"].split("-")[-2]) for event in events]


@BOTH
def test_of_two_celery_workers_each_claims_only_what_fits_and_the_killed_ones_lease_passes_on(
    stack: LiveStack, redis_url: str
) -> None:
    contents = [f"prompt {number}" for number in range(24)]
    small_model, large_model = make_model(stack, SMOLLM2), make_model(stack, QWEN_32B)
    options = {"child": f"--limit {stack.allow(8)}", "redis_url": redis_url}  # the large batch cannot end yet
    small = start_worker(stack, "small", 24, **options)
    first_large = start_worker(stack, "large", 160, **options)
    stack.wait_until(lambda: devices_present().count() == 2, 60)
    large_batch = make_batch(stack, large_model, contents)
    stack.wait_for_committed_shards(large_batch.job_id, 1)
    small_batches = [make_batch(stack, small_model, ["a", "b"]) for _ in range(4)]
    stack.wait_for_jobs([batch.job_id for batch in small_batches])
    assert leases_valid().get(job=large_batch.job_id).device.machine == "large"

    kill_9(first_large)
    second_large = start_worker(stack, "spare", 160, **options)
    stack.allow(len(contents))

    job = stack.wait_for_job(large_batch.job_id)
    large_batch.refresh_from_db()
    assert job.status == Job.Status.SUCCEEDED
    assert output_of(large_batch) == expected_output(job.pk, contents)
    assert claims_of(job.pk) == [(1, str(first_large.pid)), (2, str(second_large.pid))]
    assert small.poll() is None
    assert not leases_valid().exists()


@BOTH
def test_a_job_that_fits_no_worker_waits_until_a_larger_device_is_registered(stack: LiveStack, redis_url: str) -> None:
    large = make_batch(stack, make_model(stack, QWEN_32B), ["a"])
    small = make_batch(stack, make_model(stack, SMOLLM2), ["a"])
    start_worker(stack, "small", 24, redis_url=redis_url)
    stack.wait_for_job(small.job_id)
    assert claims_of(large.job_id) == []

    worker = start_worker(stack, "large", 160, redis_url=redis_url)

    assert stack.wait_for_job(large.job_id).status == Job.Status.SUCCEEDED
    assert claims_of(large.job_id) == [(1, str(worker.pid))]


def test_a_batch_whose_rows_name_a_large_model_moves_to_a_worker_with_a_larger_device(
    stack: LiveStack, redis_url: str
) -> None:
    """The memory is unknown until a worker has read the rows."""
    model = make_model(stack, QWEN_32B)
    file = make_file(stack.organization, [chat_row(model=model.name, max_tokens=MAX_TOKENS, temperature=0)])
    batch = batch_create(organization=stack.organization, input_file=file, endpoint="/v1/chat/completions")
    small = start_worker(stack, "small", 24, redis_url=redis_url)
    stack.wait_until(lambda: JobEvent.objects.filter(job=batch.job_id, type="released").exists(), 60)

    large = start_worker(stack, "large", 160, redis_url=redis_url)

    assert stack.wait_for_job(batch.job_id).status == Job.Status.SUCCEEDED
    assert claims_of(batch.job_id) == [(1, str(small.pid)), (2, str(large.pid))]


def test_a_stopped_worker_withdraws_its_device(stack: LiveStack, redis_url: str) -> None:
    worker = start_worker(stack, "small", 24, redis_url=redis_url)
    stack.wait_until(lambda: devices_present().count() == 1, 60)

    worker.terminate()
    worker.wait(timeout=30)

    assert not devices_present().exists()
    assert Device.objects.get().machine == "small"


@BOTH
def test_of_several_workers_of_a_machine_that_offer_one_device_only_one_leases_it(
    stack: LiveStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = settings.SLIPSTREAM.model_copy(update={"devices": (gpu(80),), "node_name": "here"})
    monkeypatch.setattr(settings, "SLIPSTREAM", config)
    for _ in range(4):
        job_submit(organization=stack.organization, kind=Job.Kind.TRAINING, params={}, memory_needed={"cuda": GB})
    with across_tenants(Across.COMMAND):
        devices_register()
    start, claims = threading.Barrier(4), list[Claim]()

    def race(name: str) -> None:
        start.wait()
        try:
            if claim := job_claim_next(worker=name):
                claims.append(claim)
        finally:
            connection.close()

    threads = [threading.Thread(target=race, args=(f"worker {n}",)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    (claim,) = claims
    assert leases_valid().get().job_id == claim.job_id
