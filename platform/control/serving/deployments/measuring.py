"""Reads the counters of endpoints at intervals, in threads, and stores them as samples.

A sample holds the counters of one process since its start. The figures of a period are computed from differences
between samples of the same process. A restart therefore loses the counts since the last sample, and nothing is counted
twice.
"""

import datetime as dt
import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import httpx2
from django.utils import timezone
from prometheus_client.parser import text_string_to_metric_families

from control.serving.deployments.engine_tls import EngineAddress
from control.serving.deployments.models import DeploymentSample, Replica

RETENTION = dt.timedelta(days=7)
# Maps the name of a sample in Prometheus's text to the counter's name in `DeploymentSample.counters`.
_COUNTED: Mapping[str, str] = {
    "vllm:prompt_tokens_total": "prompt_tokens",
    "vllm:generation_tokens_total": "generation_tokens",
    "vllm:spec_decode_num_drafts_total": "drafts",
    "vllm:spec_decode_num_draft_tokens_total": "draft_tokens",
    "vllm:spec_decode_num_accepted_tokens_total": "accepted_tokens",
    "vllm:e2e_request_latency_seconds_count": "requests",
    "vllm:e2e_request_latency_seconds_sum": "latency_seconds",
    "vllm:time_to_first_token_seconds_count": "first_tokens",
    "vllm:time_to_first_token_seconds_sum": "first_token_seconds",
}
COUNTERS = tuple(_COUNTED.values())


def counters_of(text: str) -> dict[str, float]:
    """Parses Prometheus's text format; a counter that is missing is 0."""
    counters = dict.fromkeys(COUNTERS, 0.0)
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if name := _COUNTED.get(sample.name):
                counters[name] += sample.value
    return counters


def _read_counters(client: httpx2.Client, address: EngineAddress, token: str) -> dict[str, float] | None:
    try:
        headers = {"Authorization": f"Bearer {token}"}
        response = client.get(address.url("/metrics"), headers=headers, extensions=address.extensions)
        return counters_of(response.text) if response.status_code == 200 else None
    except (httpx2.HTTPError, ValueError):  # ValueError: the text is not in Prometheus's format
        return None


@dataclass(slots=True)
class CounterSampler:
    """Samples the counters of one process, from its launch or adoption on."""

    interval_seconds: float
    _pending: "Future[dict[str, float] | None] | None" = None
    _next_at: float = 0.0

    def poll(self, pool: ThreadPoolExecutor, client: httpx2.Client, replica: Replica) -> None:
        """Starts a read when one is due, and stores the result of a read that has ended since the last call."""
        if self._pending is None:
            if time.monotonic() >= self._next_at and replica.port is not None:
                self._pending = pool.submit(_read_counters, client, replica.supervised_address, replica.token)
        elif self._pending.done():
            ended, self._pending = self._pending, None
            self._next_at = time.monotonic() + self.interval_seconds
            counters = ended.result()
            if counters is not None:
                sample_keep(replica=replica, counters=counters)


def sample_keep(*, replica: Replica, counters: Mapping[str, float]) -> DeploymentSample:
    """Stores a sample of a replica's process. Effects: deletes the deployment's samples older than `RETENTION`."""
    deployment = replica.deployment
    DeploymentSample.objects.filter(deployment=deployment, at__lt=timezone.now() - RETENTION).delete()
    return DeploymentSample.objects.create(
        deployment=deployment,
        process=f"{replica.pid}:{replica.process_started}",
        speculator_id=deployment.speculator_id,
        counters=dict(counters),
    )
