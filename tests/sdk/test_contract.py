"""The Python client works with the real API, which runs in the test's process."""

import json
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
from django.core.handlers.wsgi import WSGIHandler

from control.models.catalog.models import BaseModel, Speculator
from control.serving.captures.services import request_capture
from control.workflows.evaluations.models import Evaluation
from control.workflows.evaluations.services import evaluation_finish
from slipstream import (
    APIStatusError,
    AsyncClient,
    AuthenticationError,
    BadRequestError,
    Client,
    File,
    NotFoundError,
    PermissionDeniedError,
    PipelineFailed,
    UploadError,
)
from slipstream.certificates import verify
from tests.control.factories import chat_row, make_base_model, make_key, make_organization
from tests.control.workflows.evaluations.evidence import make_evidence
from tests.control.workflows.evaluations.helpers import make_speculator

pytestmark = pytest.mark.usefixtures("one_connection")

URL = "http://localhost/v1"
TRANSPORT = httpx2.WSGITransport(app=WSGIHandler(), raise_app_exceptions=False)


@pytest.fixture
def base_model() -> BaseModel:
    return make_base_model("tiny")


@pytest.fixture
def client() -> Iterator[Client]:
    _, token = make_key()
    with Client(URL, token, transport=TRANSPORT, max_retries=0) as client:
        yield client


def rows(num_rows: int) -> bytes:
    return "".join(json.dumps(chat_row(f"row-{number}")) + "\n" for number in range(num_rows)).encode()


def test_files_are_uploaded_downloaded_and_deleted(client: Client, tmp_path: Path) -> None:
    content = rows(3)
    file = client.files.upload(content, filename="prompts.jsonl")

    assert (file.filename, file.bytes, file.purpose) == ("prompts.jsonl", len(content), "batch")
    assert client.files.content(file.id) == content
    assert client.files.download(file.id, tmp_path / "copy.jsonl").read_bytes() == content
    assert [listed.id for listed in client.files.list()] == [file.id]

    client.files.delete(file.id)
    with pytest.raises(NotFoundError):
        client.files.retrieve(file.id)


def test_lists_include_all_pages(client: Client) -> None:
    uploaded = [client.files.upload(rows(1), filename=f"{number}.jsonl").id for number in range(5)]

    steps = client.files.http.pages(File, "files", {"limit": 2})
    pages = list(client.files.driver.iterate(steps))
    assert [[file.id for file in page.data] for page in pages] == [uploaded[4:2:-1], uploaded[2:0:-1], uploaded[:1]]
    assert [(page.has_more, page.last_id) for page in pages] == [
        (True, uploaded[3]),
        (True, uploaded[1]),
        (False, uploaded[0]),
    ]


def test_batches_are_created_retrieved_and_cancelled(client: Client, base_model: BaseModel) -> None:
    file = client.files.upload(rows(2))

    batch = client.batches.create(input_file_id=file.id, metadata={"for": "test"})

    assert (batch.status, batch.metadata, batch.errors) == ("validating", {"for": "test"}, ())
    assert client.batches.retrieve(batch.id) == batch
    assert [listed.id for listed in client.batches.list()] == [batch.id]
    assert client.batches.cancel(batch.id).status == "cancelling"  # the worker completes the cancellation


def test_pipelines_are_created_retrieved_cancelled_and_resumed(client: Client, base_model: BaseModel) -> None:
    file = client.files.upload(rows(6))

    pipeline = client.pipelines.create(
        name="math", model=base_model.name, prompts_file=file.id, held_out=2, gate={"min_speedup": 1.2}
    )

    assert [stage.name for stage in pipeline.stages] == ["distil", "train", "evaluate", "gate", "deploy"]
    assert (pipeline.status, pipeline.stage("distil").status) == ("distilling", "running")
    assert [listed.id for listed in client.pipelines.list()] == [pipeline.id]
    assert client.pipelines.cancel(pipeline.id).status == "cancelled"
    assert client.pipelines.resume(pipeline.id).status == "distilling"


def test_the_error_for_an_invalid_pipeline_names_the_parameter(client: Client, base_model: BaseModel) -> None:
    file = client.files.upload(rows(2))

    with pytest.raises(BadRequestError) as caught:
        client.pipelines.create(name="math", model=base_model.name, prompts_file=file.id, gate={"min_sped": 1.2})

    assert (caught.value.code, caught.value.param) == ("unknown_parameter", "gate.min_sped")


def test_models_and_deployments_are_listed_started_and_stopped(client: Client, base_model: BaseModel) -> None:
    deployment = client.deployments.create(name="math", model=base_model.name)

    assert (deployment.name, deployment.desired_state) == ("math", "running")
    assert {model.id for model in client.models.list()} == {"tiny", "math"}
    assert client.deployments.stop(deployment.id).desired_state == "stopped"
    assert client.deployments.start(deployment.id).desired_state == "running"
    client.deployments.delete(deployment.id)
    assert "math" not in {listed.name for listed in client.deployments.list()}


def test_a_change_with_the_etag_of_an_earlier_state_is_refused(client: Client, base_model: BaseModel) -> None:
    made = client.deployments.create(name="fast", model=base_model.name)
    read = client.with_raw_response.deployments.retrieve(made.id)
    conditional = client.with_options(headers={"If-Match": read.headers["etag"]})

    assert conditional.deployments.update(made.id, replicas=2).replicas == 2
    with pytest.raises(APIStatusError) as refused:
        conditional.deployments.update(made.id, replicas=3)

    assert (refused.value.status, refused.value.code) == (412, "object_changed")


def test_only_the_organizations_own_speculators_are_visible(base_model: BaseModel) -> None:
    own_organization = make_organization()
    speculators = [
        Speculator.objects.create(
            organization=organization, base_model=base_model, name="math", kind="medusa", target_revision="0" * 64
        )
        for organization in (own_organization, make_organization())
    ]
    _, token = make_key(own_organization)

    with Client(URL, token, transport=TRANSPORT) as client:
        assert [speculator.id for speculator in client.speculators.list()] == [speculators[0].pk]
        assert client.speculators.retrieve(speculators[0].pk).model == "tiny"
        with pytest.raises(NotFoundError):
            client.speculators.retrieve(speculators[1].pk)


def test_evaluations_are_created_and_cancelled_and_a_finished_evaluation_has_a_certificate() -> None:
    organization = make_organization()
    speculator, (_, token) = make_speculator(organization), make_key(organization)
    with Client(URL, token, transport=TRANSPORT) as client:
        file = client.files.upload(rows(3))

        evaluation = client.evaluations.create(
            speculator_id=speculator.pk, prompts_file=file.id, price_per_gpu_hour=2.0, compare_with=["ngram"]
        )

        assert (evaluation.status, evaluation.price_per_gpu_hour) == ("queued", 2.0)
        assert (evaluation.concurrencies, evaluation.compare_with) == ([1, 4, 16, 32], ["ngram"])
        assert [listed.id for listed in client.evaluations.list(speculator_id=speculator.pk)] == [evaluation.id]
        assert client.evaluations.cancel(evaluation.id).id == evaluation.id
        with pytest.raises(NotFoundError):
            client.evaluations.certificate(evaluation.id)
        evaluation_finish(
            evaluation=Evaluation.objects.get(pk=evaluation.id), report={}, evidence=make_evidence(), plots_prefix="e"
        )
        statement = verify(client.evaluations.certificate(evaluation.id), client.evaluations.public_key())
    assert statement["speculator"]["id"] == speculator.pk


def test_captured_requests_can_be_stored_as_a_file(client: Client, base_model: BaseModel) -> None:
    deployment = client.deployments.create(name="math", model=base_model.name)

    assert client.captures.set(deployment.id, hours=24).num_requests == 0
    request_capture(deployment_id=deployment.id, endpoint="/v1/chat/completions", body=chat_row()["body"])
    assert client.captures.retrieve(deployment.id).num_requests == 1
    assert b'"captured-' in client.files.content(client.captures.file(deployment.id).id)
    client.captures.end(deployment.id)
    with pytest.raises(NotFoundError):
        client.captures.retrieve(deployment.id)


def test_a_wrong_key_raises_an_authentication_error() -> None:
    with Client(URL, "sk_live_wrong", transport=TRANSPORT) as client, pytest.raises(AuthenticationError) as caught:
        list(client.files.list())

    assert caught.value.code == "invalid_api_key"
    assert caught.value.request_id


def test_an_interrupted_upload_continues_after_its_first_part(client: Client, tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_bytes(rows(9))
    size = path.stat().st_size
    upload = client.uploads.create(
        filename="prompts.jsonl", num_bytes=size, purpose="batch", mime_type="application/jsonl"
    )
    client.uploads.add_part(upload.id, path.read_bytes()[:100])

    file = client.uploads.send(upload.id, path, part_bytes=size // 2)

    assert client.files.content(file.id) == path.read_bytes()
    assert [part.bytes for part in client.uploads.parts(upload.id)] == [100, size // 2, size - size // 2 - 100]
    assert client.uploads.send(upload.id, path) == file


def test_an_upload_cannot_be_completed_with_a_file_of_another_size(client: Client, tmp_path: Path) -> None:
    other = tmp_path / "other.jsonl"
    other.write_bytes(rows(1))
    upload = client.uploads.create(filename="a", num_bytes=7, purpose="batch", mime_type="application/jsonl")

    with pytest.raises(UploadError, match="is for a file of 7 bytes"):
        client.uploads.send(upload.id, other)
    assert client.uploads.cancel(upload.id).status == "cancelled"


def test_a_dataset_lists_its_bad_lines(client: Client) -> None:
    file = client.files.upload(rows(2) + b"nonsense\n")

    dataset = client.datasets.create(file_id=file.id)

    assert (dataset.status, dataset.num_rows) == ("invalid", 3)
    assert [(error["line"], error["code"]) for error in client.datasets.errors(dataset.id)] == [
        (3, "invalid_json_line")
    ]
    assert [listed.id for listed in client.datasets.list()] == [dataset.id]
    client.datasets.delete(dataset.id)
    with pytest.raises(NotFoundError):
        client.datasets.retrieve(dataset.id)


def test_datasets_are_scanned_filtered_and_mixed(client: Client) -> None:
    texts = ["write to ann@example.com", "hello", "bye"]
    file = client.files.upload(b"".join(b'{"prompt": "%s"}\n' % text.encode() for text in texts), purpose="fine-tune")
    redacted = client.datasets.create(file_id=file.id, name="mail", on_sensitive="redact")
    assert redacted.sensitive is not None
    assert redacted.sensitive["num_found"] == 1

    short = client.datasets.filter("mail@latest", max_characters=10, excludes="^b")
    mixed = client.datasets.mix(
        [{"dataset_id": redacted.id, "weight": 2}, {"dataset_id": short.id}], name="mix", seed=4
    )

    assert (short.name, short.version, short.num_rows) == ("mail", 2, 1)
    assert (mixed.name, mixed.num_rows) == ("mix", 3)
    assert mixed.origin is not None
    assert mixed.origin["mix"]["seed"] == 4


def test_keys_are_created_rotated_and_revoked(client: Client) -> None:
    made = client.api_keys.create(name="ci", scopes=["files:read"])

    assert made.key is not None
    with Client(URL, made.key, transport=TRANSPORT) as limited:
        assert list(limited.files.list()) == []
        with pytest.raises(PermissionDeniedError):
            list(limited.batches.list())
    successor = client.api_keys.rotate(made.id, grace_seconds=0)
    assert (successor.scopes, client.api_keys.retrieve(made.id).key) == (["files:read"], None)
    client.api_keys.revoke(successor.id)
    assert client.api_keys.retrieve(successor.id).revoked_at is not None


def test_usage_and_costs_are_returned_in_buckets(client: Client) -> None:
    assert client.usage.total().num_model_requests == 0
    assert len(list(client.usage.completions(start_time=0, end_time=40 * 86400, group_by=["model"]))) == 40
    assert all(bucket.results == [] for bucket in client.usage.costs(start_time=0, end_time=86400))


def test_events_are_listed_and_sent_to_webhook_endpoints(client: Client, base_model: BaseModel) -> None:
    endpoint = client.webhook_endpoints.create(url="https://example.com/hook", events=["batch.*"])
    batch = client.batches.create(input_file_id=client.files.upload(rows(1)).id)
    client.batches.cancel(batch.id)

    types = [event.type for event in client.events.list(types=["batch.*"], object_id=batch.id)]
    assert types[0].startswith("batch.cancel")
    assert [delivery.event_type for delivery in client.webhook_endpoints.deliveries(endpoint.id)] == types
    assert client.webhook_endpoints.update(endpoint.id, enabled=False).enabled is False
    assert client.webhook_endpoints.rotate_secret(endpoint.id).secret != endpoint.secret
    client.webhook_endpoints.delete(endpoint.id)
    assert list(client.webhook_endpoints.list()) == []


class InThisThread(httpx2.AsyncBaseTransport):
    """Runs the API in the test's thread.

    With an event loop, Django would use another thread, whose database connection does not see the test's transaction.
    """

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        await request.aread()
        response = TRANSPORT.handle_request(request)
        return httpx2.Response(response.status_code, headers=response.headers, content=response.read())


def test_the_asynchronous_client_works_with_the_real_api(base_model: BaseModel) -> None:
    _, token = make_key()

    async def use_client() -> None:
        async with AsyncClient(URL, token, transport=InThisThread(), max_retries=0) as client:
            file = await client.files.upload(rows(6), filename="a.jsonl")
            assert await client.files.content(file.id) == rows(6)
            assert [listed.id async for listed in client.files.list()] == [file.id]
            pipeline = await client.pipelines.create(name="math", model="tiny", prompts_file=file.id, held_out=2)
            await client.pipelines.cancel(pipeline.id)
            with pytest.raises(PipelineFailed):
                await pipeline.wait()

    # Nothing in the coroutine waits, so one `send` runs it to its end without an event loop.
    with pytest.raises(StopIteration):
        use_client().send(None)
