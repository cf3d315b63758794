"""Metrics of the engines, under vLLM's names, with the labels `deployment`, `replica` and `organization`.

Gateways collect the metrics because a scraper cannot: an engine's port and token change with every start.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import httpx2
from django.db import DatabaseError
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from control.serving.deployments.engine_tls import EngineAddress, EngineTransport
from control.serving.deployments.models import UP, Replica
from control.tenants.row_security.scope import Across, across_tenants

TIMEOUT_SECONDS = 2.0
MAX_ENGINES = 200


@dataclass(frozen=True, slots=True)
class _Engine:
    labels: dict[str, str]
    address: EngineAddress
    token: str


class Engines(Collector):
    """Collects the metrics of the engines that answer. `slipstream_deployments` reports the states of all engines."""

    def collect(self) -> Iterator[Metric]:
        engines = _engines()
        if not engines:
            return
        families: dict[str, Metric] = {}
        with ThreadPoolExecutor(max_workers=8) as pool:
            for engine, text in zip(engines, pool.map(_metrics, engines), strict=True):
                _add(families, engine.labels, text)
        yield from families.values()


def _engines() -> list[_Engine]:
    try:
        with across_tenants(Across.CONSOLE):
            serving = Replica.objects.filter(state__in=UP, port__isnull=False).select_related("deployment")
            rows = list(serving.order_by("pk")[:MAX_ENGINES])
    except DatabaseError:
        return []  # `queue_metrics` reports that the database is unreachable
    return [
        _Engine(
            {
                "deployment": row.deployment_id,
                "replica": str(row.number),
                "organization": row.deployment.organization_id,
            },
            EngineAddress(row.host, row.port, row.certificate),
            row.token,
        )
        for row in rows
        if row.port is not None
    ]


def _metrics(engine: _Engine) -> str:
    """The engine's metrics as text; empty if the engine did not answer."""
    try:
        with httpx2.Client(trust_env=False, timeout=TIMEOUT_SECONDS, transport=EngineTransport()) as client:
            response = client.get(
                engine.address.url("/metrics"),
                headers={"Authorization": f"Bearer {engine.token}"},
                extensions=engine.address.extensions,
            )
    except httpx2.HTTPError:
        return ""
    return response.text if response.status_code == 200 else ""


def _add(families: dict[str, Metric], labels: dict[str, str], text: str) -> None:
    for family in text_string_to_metric_families(text):
        if family.name.startswith("vllm:"):
            merged = families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
            merged.samples += [sample._replace(labels={**sample.labels, **labels}) for sample in family.samples]
