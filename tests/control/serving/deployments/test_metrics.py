"""Metrics of endpoints over time, computed as differences between samples of the engines' counters."""

import datetime as dt
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import pytest
from django.test import Client
from django.utils import timezone

from control.serving.deployments.engine_tls import EngineAddress
from control.serving.deployments.figures import figures_since
from control.serving.deployments.health import probe
from control.serving.deployments.measuring import COUNTERS, RETENTION, CounterSampler, counters_of, sample_keep
from control.serving.deployments.models import Deployment, DeploymentSample
from control.serving.deployments.services import deployment_create
from control.serving.deployments.supervisor import Supervisor
from control.tenants.accounts.models import Organization
from tests.control.factories import make_base_model
from tests.control.operations.console.support import change_path, operator_client, page
from tests.control.serving.deployments.conftest import TIMINGS
from tests.control.serving.deployments.support import (
    State,
    make_deployment,
    make_replica,
    make_served_model,
    replica_of,
    tick_until,
    tick_until_state,
)

TEXT = """
# TYPE vllm:generation_tokens_total counter
vllm:generation_tokens_total{model_name="m"} 30.0
# TYPE vllm:e2e_request_latency_seconds histogram
vllm:e2e_request_latency_seconds_bucket{le="+Inf",model_name="m"} 4.0
vllm:e2e_request_latency_seconds_count{model_name="m"} 4.0
vllm:e2e_request_latency_seconds_sum{model_name="m"} 2.0
# TYPE vllm:spec_decode_num_drafts_total counter
vllm:spec_decode_num_drafts_total{model_name="m"} 10.0
# TYPE vllm:spec_decode_num_accepted_tokens_total counter
vllm:spec_decode_num_accepted_tokens_total{model_name="m"} 15.0
"""


@pytest.fixture
def deployment(organization: Organization) -> Deployment:
    made = deployment_create(organization=organization, name="endpoint", base_model=make_base_model())
    make_replica(made, pid=7, process_started="noon")
    return made


def sample(deployment: Deployment, at: dt.datetime, **counters: float) -> None:
    made = sample_keep(replica=deployment.replicas.get(), counters={**dict.fromkeys(COUNTERS, 0.0), **counters})
    DeploymentSample.objects.filter(pk=made.pk).update(at=at)


def metrics(client: Client, deployment: Deployment, query: str = "") -> list[dict[str, Any]]:
    response = client.get(f"/v1/deployments/{deployment.pk}/metrics?{query}")
    assert response.status_code == 200, response.content
    data: list[dict[str, Any]] = response.json()["data"]
    return data


def test_the_counters_of_an_engine_are_read() -> None:
    counters = counters_of(TEXT)

    assert set(counters) == set(COUNTERS)
    assert (counters["generation_tokens"], counters["requests"], counters["latency_seconds"]) == (30, 4, 2)
    assert counters["prompt_tokens"] == 0


def test_an_answer_that_is_not_in_prometheus_format_is_not_counted(deployment: Deployment) -> None:
    replica, sampler = deployment.replicas.get(), CounterSampler(interval_seconds=0.0)
    replica.port = 1
    transport = httpx2.MockTransport(lambda _: httpx2.Response(200, text="{}"))

    with ThreadPoolExecutor(1) as pool, httpx2.Client(transport=transport) as client:
        for _ in range(4):  # two reads, each of which is started by one call and collected by the next
            sampler.poll(pool, client, replica)
            pool.submit(int).result()  # the only thread has ended the read

    assert not DeploymentSample.objects.exists()


@pytest.mark.parametrize("answer", ["[]", '{"load": 3, "sleep": {}}', '{"load": {}, "sleep": {}}', ""])
def test_an_engine_whose_health_has_another_shape_is_not_healthy(answer: str) -> None:
    transport = httpx2.MockTransport(lambda _: httpx2.Response(200, text=answer))

    with httpx2.Client(transport=transport) as client:
        assert not probe(client, EngineAddress("127.0.0.1", 1), "token").is_healthy


def test_metrics_are_computed_for_each_minute(client: Client, deployment: Deployment) -> None:
    noon = timezone.now().replace(second=0, microsecond=0) - dt.timedelta(minutes=30)
    sample(deployment, noon - dt.timedelta(seconds=10), generation_tokens=100, drafts=10, accepted_tokens=5)
    sample(
        deployment, noon + dt.timedelta(seconds=10), generation_tokens=140, drafts=20, accepted_tokens=20,
        draft_tokens=30, requests=4, latency_seconds=2, first_tokens=4, first_token_seconds=1,
    )  # fmt: skip
    later = DeploymentSample.objects.latest("pk").counters
    sample(deployment, noon + dt.timedelta(seconds=70), **later)

    first, second = metrics(client, deployment, f"start_time={int(noon.timestamp())}&limit=2")

    # In the 20 seconds between the samples, 40 tokens were generated, and 15 of 30 drafted tokens were accepted in 10
    # drafts.
    assert (first["generation_tokens"], first["tokens_per_second"], first["num_requests"]) == (40, 2.0, 4)
    assert (first["acceptance_length"], first["acceptance_rate"]) == (2.5, 0.5)
    assert (first["latency_seconds"], first["time_to_first_token_seconds"]) == (0.5, 0.25)
    assert (second["generation_tokens"], second["acceptance_length"], second["tokens_per_second"]) == (0, None, 0.0)
    assert len(metrics(client, deployment)) == 60
    assert [row["num_requests"] for row in metrics(client, deployment, "bucket_width=1h") if row["num_requests"]] == [4]


def test_counters_that_restart_at_zero_with_a_new_process_do_not_distort_the_difference(deployment: Deployment) -> None:
    begin = timezone.now() - dt.timedelta(minutes=10)
    sample(deployment, begin, requests=100)
    sample(deployment, begin + dt.timedelta(minutes=1), requests=103)
    deployment.replicas.update(process_started="one")
    sample(deployment, begin + dt.timedelta(minutes=2), requests=1)
    sample(deployment, begin + dt.timedelta(minutes=3), requests=6)

    assert figures_since(deployment, begin).num_requests == 3 + 5  # to the first process, and to the process "one"


def test_samples_are_kept_for_a_week(deployment: Deployment) -> None:
    sample(deployment, timezone.now() - RETENTION - dt.timedelta(seconds=1))
    sample(deployment, timezone.now() - RETENTION + dt.timedelta(hours=1))

    sample(deployment, timezone.now())

    assert DeploymentSample.objects.count() == 2


def test_metrics_of_another_organizations_deployment_are_hidden(
    client: Client, other_organization: Organization
) -> None:
    foreign = deployment_create(organization=other_organization, name="endpoint", base_model=make_base_model())

    assert client.get(f"/v1/deployments/{foreign.pk}/metrics").status_code == 404


def test_the_supervisor_samples_ready_deployments(supervisor: Supervisor, tmp_path: Path) -> None:
    supervisor.timings = replace(TIMINGS, sample_seconds=0.01)
    deployment = make_deployment(make_served_model(tmp_path / "model"))
    tick_until_state(supervisor, deployment, State.READY)

    tick_until(supervisor, lambda: DeploymentSample.objects.filter(deployment=deployment).count() >= 2)

    first, second = DeploymentSample.objects.order_by("pk")[:2]
    assert second.counters["requests"] == first.counters["requests"] + 1
    assert first.process == f"{replica_of(deployment).pid}:{replica_of(deployment).process_started}"


def test_the_console_draws_acceptance_over_time(deployment: Deployment) -> None:
    now = timezone.now()
    for minutes, accepted in ((3, 0), (2, 10), (1, 30)):
        sample(deployment, now - dt.timedelta(minutes=minutes), drafts=10 * (4 - minutes), accepted_tokens=accepted)

    html = page(operator_client(), change_path("deployments_deployment", deployment.pk))

    assert "acceptance length: from 2 to 3, latest value 3" in html  # 1 + 10 / 10 and 1 + 20 / 10
