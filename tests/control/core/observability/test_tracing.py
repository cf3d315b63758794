"""A trace contains the spans of a request and of the attempt of its job. If tracing is off, no SDK is imported."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
from django.test import Client
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode
from pydantic import ValidationError
from pytest_django import Settings

from control.core.observability import otel
from control.core.settings import config
from control.core.settings.config import Config, get_config
from control.queue.jobs.models import Job
from control.queue.jobs.services import job_claim
from control.tenants.accounts.models import Organization
from tests.control.factories import chat_row, make_base_model, make_file
from tests.control.serving.gateway.conftest import base_url as base_url
from tests.control.serving.gateway.conftest import caller as caller
from tests.control.serving.gateway.conftest import deployment as deployment
from tests.control.serving.gateway.conftest import supervisor as supervisor
from tests.control.serving.gateway.conftest import token as token
from workers.contracts import FailureClass
from workers.supervisor.attempt import Attempt, run_attempt
from workers.supervisor.outcomes import AttemptFailed

ROOT = Path(__file__).resolve().parents[4]
TRACE = "0af7651916cd43dd8448eb211c80319c"
TRACEPARENT = f"00-{TRACE}-b7ad6b7169203331-01"


@pytest.fixture
def spans(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(otel, "tracer", lambda: provider.get_tracer("test"))
    settings.SLIPSTREAM = get_config().model_copy(update={"tracing": True})
    yield exporter
    provider.shutdown()


def span_named(spans: InMemorySpanExporter, name: str) -> ReadableSpan:
    (span,) = [span for span in spans.get_finished_spans() if span.name == name]
    return span


def trace_of(span: ReadableSpan) -> str:
    assert span.context is not None
    return f"{span.context.trace_id:032x}"


class FailingHandler:
    def run(self, attempt: Attempt) -> dict[str, object]:
        raise AttemptFailed(FailureClass.USER_CONFIG, "model_not_loadable", "It cannot be loaded.")

    def end(self, *_: object) -> None:
        pass


@pytest.mark.django_db(transaction=True)
def test_a_request_and_the_attempt_of_its_job_share_one_trace(
    client: Client, organization: Organization, spans: InMemorySpanExporter
) -> None:
    file = make_file(organization, [chat_row()])
    make_base_model(organization=organization)
    body = {"input_file_id": file.pk, "endpoint": "/v1/chat/completions", "completion_window": "24h"}
    client.post("/v1/batches", body, "application/json", headers={"traceparent": TRACEPARENT})
    job = Job.objects.get()
    claim = job_claim(job_id=job.pk, worker="test")
    assert claim is not None

    run_attempt(claim, stop=threading.Event(), handlers={Job.Kind.BATCH: FailingHandler()})

    request, attempt = span_named(spans, "POST v1/batches"), span_named(spans, "attempt batch")
    assert trace_of(request) == trace_of(attempt) == TRACE
    assert request.context is not None
    assert attempt.parent is not None
    assert attempt.parent.span_id == request.context.span_id
    assert request.attributes is not None
    assert request.attributes["http.response.status_code"] == 200
    assert request.attributes["slipstream.organization.id"] == organization.pk
    assert attempt.attributes is not None
    assert attempt.attributes["slipstream.job.id"] == job.pk
    assert attempt.attributes["error.type"] == "model_not_loadable"
    assert attempt.status.status_code is StatusCode.ERROR


@pytest.mark.usefixtures("deployment")
@pytest.mark.parametrize("stream", [False, True])
def test_the_span_of_a_completion_has_attributes_named_by_opentelemetrys_conventions(
    base_url: str, token: str, spans: InMemorySpanExporter, stream: bool
) -> None:
    body = {"model": "fast", "messages": [{"role": "user", "content": "hello"}], "stream": stream}

    with httpx2.Client(trust_env=False, headers={"Authorization": f"Bearer {token}"}) as client:
        assert client.post(f"{base_url}/chat/completions", json=body).status_code == 200

    chat, request = span_named(spans, "chat fast"), span_named(spans, "POST v1/chat/completions")
    assert dict(chat.attributes or {}) == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "slipstream",
        "gen_ai.request.model": "fast",
        "gen_ai.usage.input_tokens": 7,
        "gen_ai.usage.output_tokens": 2,
    }
    assert trace_of(chat) == trace_of(request)


@pytest.mark.usefixtures("deployment")
def test_the_span_records_the_death_of_an_engine_as_an_error(
    base_url: str, token: str, spans: InMemorySpanExporter
) -> None:
    body = {"model": "fast", "messages": [{"role": "user", "content": "die at once"}]}

    with httpx2.Client(trust_env=False, headers={"Authorization": f"Bearer {token}"}) as client:
        assert client.post(f"{base_url}/chat/completions", json=body).status_code == 502

    chat, request = span_named(spans, "chat fast"), span_named(spans, "POST v1/chat/completions")
    assert (chat.attributes or {})["error.type"] == "upstream_unavailable"
    assert chat.status.status_code is request.status.status_code is StatusCode.ERROR


def test_without_tracing_neither_requests_nor_workers_import_opentelemetry(tmp_path: Path) -> None:
    """The test looks only for tracers and exporters, because the redis library imports OpenTelemetry's metrics."""
    script = (
        "import sys, django\n"
        "django.setup()\n"
        "from django.test import Client\n"
        "import workers.supervisor.worker\n"
        "assert Client().get('/v1/jobs').status_code == 400  # an unknown host: the request passed all middleware\n"
        "print([name for name in sys.modules if name.startswith(('opentelemetry.sdk.trace', 'opentelemetry.exporter'))"
        " or name == 'control.core.observability.otel'])"
    )
    environment = {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "control.core.settings.embedded",
        "SLIPSTREAM_DATA_DIR": str(tmp_path),
        "PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "platform"))),
    }

    process = subprocess.run([sys.executable, "-c", script], env=environment, cwd=ROOT, capture_output=True, text=True)

    assert process.stdout.strip() == "[]", process.stderr


def test_enabling_tracing_without_its_packages_is_refused_at_startup(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "find_spec", lambda name: None)

    with pytest.raises(ValidationError, match=r"requirements-tracing\.txt"):
        Config(tracing=True)
