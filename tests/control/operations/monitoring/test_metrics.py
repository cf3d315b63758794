"""Tests the content of /metrics, who may read it, and metrics that processes share through a folder."""

import http.server
import os
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from django.test import Client
from django.utils import timezone
from prometheus_client.parser import text_string_to_metric_families
from pydantic import SecretStr
from pytest_django import Settings

from control.core.observability.listener import listen
from control.core.settings.config import get_config
from control.queue.jobs.models import Job
from control.tenants.accounts.models import Organization
from control.tenants.webhooks.models import WebhookDelivery, WebhookEndpoint
from tests.control.factories import make_base_model, make_job
from tests.control.queue.jobs.helpers import claim, expire_lease, submit
from tests.control.serving.deployments.support import make_deployment, make_replica

ROOT = Path(__file__).resolve().parents[4]
TOKEN = "a token of the engine"


def samples(text: str) -> dict[tuple[str, ...], float]:
    """Returns {(name, label value, ...): value of the sample}, with the labels in alphabetical order."""
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def scrape() -> dict[tuple[str, ...], float]:
    response = Client().get("/metrics")
    assert response.status_code == 200
    return samples(response.content.decode())


def test_requests_are_counted_by_route_and_status(client: Client) -> None:
    known_route = ("slipstream_http_requests_total", "GET", "v1/jobs/<str:job_id>", "404")
    unknown_route = ("slipstream_http_requests_total", "GET", "none", "404")
    before = scrape()

    client.get("/v1/jobs/job_1")
    client.get("/v1/jobs/job_2")
    client.get("/nothing/here")
    client.generic("INVENTED", "/nothing/here")  # an unknown method must not become a label

    after = scrape()
    assert after[known_route] - before.get(known_route, 0) == 2
    assert after[unknown_route] - before.get(unknown_route, 0) == 1
    assert not [name for name in after if "INVENTED" in name]
    assert ("slipstream_http_request_seconds_count", "GET", "v1/jobs/<str:job_id>") in after
    assert not [name for name in after if "job_1" in name], "an id must not become a label"


def test_metrics_count_jobs_by_kind_and_state_and_give_the_age_of_the_oldest_waiting_job(
    organization: Organization,
) -> None:
    oldest_job = make_job(organization, kind=Job.Kind.BATCH)
    Job.objects.filter(pk=oldest_job.pk).update(created_at=timezone.now() - timedelta(seconds=90))
    make_job(organization, kind=Job.Kind.BATCH)
    make_job(organization, kind=Job.Kind.TRAINING, priority=1, not_before=timezone.now() + timedelta(hours=1))
    make_job(organization, kind=Job.Kind.TRAINING, status=Job.Status.PAUSED)
    make_job(organization, kind=Job.Kind.TRAINING, status=Job.Status.PAUSED)
    claim(submit(organization=organization, kind=Job.Kind.EVALUATION))
    abandoned = submit(organization=organization)
    claim(abandoned)
    expire_lease(abandoned)

    metrics = scrape()

    assert metrics["slipstream_jobs_waiting", "batch", "0"] == 2
    assert 90 <= metrics["slipstream_job_oldest_waiting_seconds", "batch", "0"] < 150
    assert metrics["slipstream_jobs_backing_off", "training"] == 1
    assert metrics["slipstream_jobs_paused", "training"] == 2
    assert metrics["slipstream_jobs_running", "evaluation"] == 1
    assert metrics["slipstream_jobs_abandoned", "batch"] == 1
    assert metrics["slipstream_jobs_waiting", "training", "1"] == metrics["slipstream_jobs_abandoned", "training"] == 0
    assert metrics["slipstream_database_up",] == 1


def test_metrics_count_pending_webhooks_and_deployments(client: Client, organization: Organization) -> None:
    make_deployment(make_base_model(), organization)
    WebhookEndpoint.objects.create(organization=organization, url="https://example.com", events=["*"])
    client.post("/v1/webhook_endpoints", {"url": "https://example.org/", "events": ["*"]}, "application/json")
    pending = WebhookDelivery.objects.count()

    metrics = scrape()

    assert metrics["slipstream_webhooks_pending",] == pending
    assert metrics["slipstream_deployments", "provisioning"] == 1
    assert metrics["slipstream_deployments", "failed"] == 0, "an alert needs the value 0, not a missing sample"


@pytest.fixture
def engine_port() -> Iterator[int]:
    """Port of a fake engine that serves metrics."""
    text = "\n".join(
        (
            "# TYPE vllm:spec_decode_num_drafts counter",
            'vllm:spec_decode_num_drafts_total{model_name="fast"} 10.0',
            "# TYPE vllm:spec_decode_num_accepted_tokens counter",
            'vllm:spec_decode_num_accepted_tokens_total{model_name="fast"} 25.0',
            "# TYPE process_open_fds gauge",
            "process_open_fds 7.0\n",
        )
    ).encode()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            is_authorized = self.headers["Authorization"] == f"Bearer {TOKEN}" and self.path == "/metrics"
            self.send_response(200 if is_authorized else 401)
            self.end_headers()
            self.wfile.write(text if is_authorized else b"")

        def log_message(self, *args: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


def test_an_engines_samples_are_labelled_with_its_deployment_and_organization(
    organization: Organization, engine_port: int
) -> None:
    deployment, silent = (make_deployment(make_base_model(), organization, name) for name in ("fast", "silent"))
    for row, port in ((deployment, engine_port), (silent, 1)):
        make_replica(row, port=port, token=TOKEN)

    metrics = scrape()

    labels = deployment.pk, "fast", organization.pk, "0"
    assert metrics["vllm:spec_decode_num_drafts_total", *labels] == 10
    assert metrics["vllm:spec_decode_num_accepted_tokens_total", *labels] == 25
    assert not [name for name in metrics if silent.pk in name or name[0] == "process_open_fds"]


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("token", "headers", "address", "status"),
    [
        (None, {}, "127.0.0.1", 200),
        (None, {}, "::1", 200),
        (None, {}, "10.0.0.7", 404),
        (None, {"X-Forwarded-For": "127.0.0.1"}, "127.0.0.1", 404),
        ("right", {}, "127.0.0.1", 404),
        ("right", {"Authorization": "Bearer wrong"}, "127.0.0.1", 404),
        ("right", {"Authorization": "Bearer right"}, "10.0.0.7", 200),
    ],
)
def test_metrics_need_the_token_or_if_none_is_set_a_local_address(
    settings: Settings, token: str | None, headers: dict[str, str], address: str, status: int
) -> None:
    secret = None if token is None else SecretStr(token)
    settings.SLIPSTREAM = get_config().model_copy(update={"metrics_token": secret})

    assert Client(headers=headers, REMOTE_ADDR=address).get("/metrics").status_code == status


def test_a_worker_serves_its_own_metrics_and_health(settings: Settings) -> None:
    settings.SLIPSTREAM = get_config().model_copy(update={"metrics_port": 0})
    alive = [True]
    port = listen(lambda: alive[0])

    def get(path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as response:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, ""

    assert get("/livez")[0] == 200
    assert "slipstream_job_claims" in get("/metrics")[1]
    assert get("/else")[0] == 404
    alive[0] = False
    assert get("/livez")[0] == 503


def test_each_process_reports_the_metrics_of_all_processes_with_the_same_folder(tmp_path: Path) -> None:
    count = "from control.core.observability.metrics import job_claims, render\njob_claims.labels('batch').inc()\n"
    environment = {
        **os.environ,
        "PROMETHEUS_MULTIPROC_DIR": str(tmp_path),
        "PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "platform"))),
    }
    outputs = [
        subprocess.run(
            [sys.executable, "-c", count + "print(render().decode())"],
            env=environment, cwd=ROOT, check=True, capture_output=True, text=True,
        ).stdout
        for _ in range(3)
    ]  # fmt: skip

    assert [samples(output)["slipstream_job_claims_total", "batch"] for output in outputs] == [1, 2, 3]
