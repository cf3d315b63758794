"""Faults of storage: an S3 server with errors, truncated responses and delays, and a full disk of a worker."""

import hashlib
import os
import shlex
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from django.conf import settings

from control.core.storage import backends as storage
from control.core.storage.backends import get_storage
from control.queue.jobs.models import Job
from control.workflows.batches.models import Batch
from tests.fault_proxy import FaultProxy, Faults
from tests.workers.supervisor.live import LiveStack, read_object
from tests.workers.supervisor.test_worker_process import expected_output, output_of

BUCKET = "slipstream"
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "testing",
    "AWS_SECRET_ACCESS_KEY": "testing",
    "AWS_DEFAULT_REGION": "us-east-1",
}


@pytest.fixture(scope="session")
def s3_port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """Runs moto's S3 server in another process and yields its port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    log = tmp_path_factory.mktemp("s3") / "log"
    with log.open("wb") as output:
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
        server = subprocess.Popen(command, stdout=output, stderr=output)
    deadline = time.monotonic() + 40
    while not _listens(port):
        assert server.poll() is None, log.read_text()
        assert time.monotonic() < deadline, "moto's server did not start"
        time.sleep(0.05)
    yield port
    server.kill()
    server.wait()


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture
def bucket(s3_port: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Makes an empty bucket and yields an S3 client that bypasses the faulty proxy."""
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    client = boto3.client("s3", endpoint_url=f"http://127.0.0.1:{s3_port}")
    client.create_bucket(Bucket=BUCKET)
    yield client
    for item in client.list_objects_v2(Bucket=BUCKET).get("Contents", []):
        client.delete_object(Bucket=BUCKET, Key=item["Key"])
    client.delete_bucket(Bucket=BUCKET)
    client.close()


def use_bucket(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"http://127.0.0.1:{port}"
    config = settings.SLIPSTREAM.model_copy(update={"s3_bucket": BUCKET, "s3_endpoint_url": url})
    monkeypatch.setattr(settings, "SLIPSTREAM", config)
    storage._s3_client.cache_clear()


@pytest.fixture
def proxy(s3_port: int) -> Iterator[FaultProxy]:
    faults = Faults(errors=0.2, cuts=0.1, delays=0.05, delay_seconds=2.0)
    proxy = FaultProxy(upstream_port=s3_port, faults=faults)
    yield proxy
    proxy.stop()


def test_a_batch_completes_with_the_right_output_although_storage_sometimes_fails(
    bucket: Any, proxy: FaultProxy, stack: LiveStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = proxy.start()
    use_bucket(port, monkeypatch)
    stack.environment |= CREDENTIALS
    stack.environment |= {"SLIPSTREAM_S3_BUCKET": BUCKET, "SLIPSTREAM_S3_ENDPOINT_URL": f"http://127.0.0.1:{port}"}
    contents = [f"prompt {number}" for number in range(48)]
    batch = stack.make_batch(contents)
    stack.start_worker()

    job = stack.wait_for_job(batch.job_id, timeout_seconds=120)

    batch.refresh_from_db()
    assert (job.status, batch.status) == (Job.Status.SUCCEEDED, Batch.Status.COMPLETED)
    assert output_of(batch) == expected_output(job.pk, contents)
    assert batch.output_file is not None
    stored = bucket.get_object(Bucket=BUCKET, Key=batch.output_file.storage_key)["Body"].read()
    assert hashlib.sha256(stored).hexdigest() == batch.output_file.sha256
    assert proxy.num_requests["error"] > 0
    assert proxy.num_requests["cut"] > 0


def test_a_large_object_is_stored_in_parts_and_an_interrupted_read_is_resumed(
    bucket: Any, proxy: FaultProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy.faults = Faults(errors=0.1, cuts=0.3)
    use_bucket(proxy.start(), monkeypatch)
    path = tmp_path / "large"
    path.write_bytes(os.urandom(20_000_000))  # boto3 uploads parts of 8 MiB

    get_storage().put_file("org/large", path)

    assert bucket.head_object(Bucket=BUCKET, Key="org/large")["ETag"].strip('"').endswith("-3"), "three parts"
    for _ in range(5):
        assert hashlib.sha256(read_object("org/large")).digest() == hashlib.sha256(path.read_bytes()).digest()
    get_storage().get_file("org/large", tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == path.read_bytes()
    assert proxy.num_requests["cut"] > 0


def small_disk_command(folder: Path, size: str) -> list[str] | None:
    """Returns a prefix that runs a command with a small disk mounted at `folder`; None if mounting is not allowed."""
    mount = f"mount -t tmpfs -o size={size} none {shlex.quote(str(folder))}"
    if shutil.which("unshare") is None:
        return None
    tried = subprocess.run(["unshare", "-rm", "sh", "-c", mount], capture_output=True)
    if tried.returncode != 0:
        return None
    return ["unshare", "-rm", "sh", "-c", f'{mount} && exec "$@"', "sh"]


def test_a_full_disk_fails_the_job_and_the_worker_continues(stack: LiveStack) -> None:
    work = stack.data_dir / "work"
    work.mkdir()
    prefix = small_disk_command(work, "256k")
    if prefix is None:
        pytest.skip("this machine does not allow mounting a small disk")
    large = stack.make_batch(["x" * 100_000] * 8)
    stack.start_worker(*prefix, sys.executable, "manage.py", "runworker")

    failed = stack.wait_for_job(large.job_id)
    small = stack.make_batch(["prompt"])
    succeeded = stack.wait_for_job(small.job_id)

    assert failed.error is not None
    assert (failed.status, failed.error["class"], failed.error["code"]) == ("failed", "infra", "disk_full")
    assert succeeded.status == Job.Status.SUCCEEDED
    assert stack.workers[0].poll() is None
