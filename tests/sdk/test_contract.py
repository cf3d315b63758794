"""The client against the API itself, in one process: what one side writes, the other reads."""

import json
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
from django.core.handlers.wsgi import WSGIHandler

from control.catalog.models import BaseModel, Speculator
from slipstream import BadRequestError, Client, NotFoundError
from slipstream.errors import AuthenticationError
from tests.control.factories import chat_row, make_base_model, make_key, make_organization

pytestmark = pytest.mark.django_db

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


def test_files_go_up_come_down_and_away(client: Client, tmp_path: Path) -> None:
    content = rows(3)
    file = client.files.upload(content, filename="prompts.jsonl")

    assert (file.filename, file.bytes, file.purpose) == ("prompts.jsonl", len(content), "batch")
    assert client.files.content(file.id) == content
    assert client.files.download(file.id, tmp_path / "copy.jsonl").read_bytes() == content
    assert [listed.id for listed in client.files.list()] == [file.id]

    client.files.delete(file.id)
    with pytest.raises(NotFoundError):
        client.files.retrieve(file.id)


def test_lists_are_walked_to_their_end(client: Client) -> None:
    uploaded = [client.files.upload(rows(1), filename=f"{number}.jsonl").id for number in range(5)]

    assert [values["id"] for values in client.files._http.pages("files", limit=2)] == uploaded[::-1]


def test_batches_are_made_shown_and_cancelled(client: Client, base_model: BaseModel) -> None:
    file = client.files.upload(rows(2))

    batch = client.batches.create(input_file_id=file.id, metadata={"for": "test"})

    assert (batch.status, batch.metadata, batch.errors) == ("validating", {"for": "test"}, ())
    assert client.batches.retrieve(batch.id) == batch
    assert [listed.id for listed in client.batches.list()] == [batch.id]
    assert client.batches.cancel(batch.id).status == "cancelling"  # the worker ends it


def test_pipelines_are_made_shown_cancelled_and_resumed(client: Client, base_model: BaseModel) -> None:
    file = client.files.upload(rows(6))

    pipeline = client.pipelines.create(
        name="math", model=base_model.name, prompts_file=file.id, held_out=2, gate={"min_speedup": 1.2}
    )

    assert [stage.name for stage in pipeline.stages] == ["distil", "train", "evaluate", "gate", "deploy"]
    assert (pipeline.status, pipeline.stage("distil").status) == ("distilling", "running")
    assert [listed.id for listed in client.pipelines.list()] == [pipeline.id]
    assert client.pipelines.cancel(pipeline.id).status == "cancelled"
    assert client.pipelines.resume(pipeline.id).status == "distilling"


def test_what_a_pipeline_refuses_is_said(client: Client, base_model: BaseModel) -> None:
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


def test_speculators_are_shown_and_those_of_others_are_not(base_model: BaseModel) -> None:
    mine = make_organization()
    speculators = [
        Speculator.objects.create(
            organization=organization, base_model=base_model, name="math", kind="medusa", target_revision="0" * 64
        )
        for organization in (mine, make_organization())
    ]
    _, token = make_key(mine)

    with Client(URL, token, transport=TRANSPORT) as client:
        assert [speculator.id for speculator in client.speculators.list()] == [speculators[0].pk]
        assert client.speculators.retrieve(speculators[0].pk).model == "tiny"
        with pytest.raises(NotFoundError):
            client.speculators.retrieve(speculators[1].pk)


def test_a_wrong_key_is_refused() -> None:
    with Client(URL, "sk_live_wrong", transport=TRANSPORT) as client, pytest.raises(AuthenticationError) as caught:
        list(client.files.list())

    assert caught.value.code == "invalid_api_key"
    assert caught.value.request_id
