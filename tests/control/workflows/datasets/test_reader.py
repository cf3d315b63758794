"""Promise S6 of docs/reliability.md: a chat template that needs too much time or memory is stopped within seconds.

A separate process, the reader, renders the template. If it is stopped, the response is the error `chat_template_error`.
"""

import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml
from django.test import Client

from control.core.api.errors import ApiError
from control.models.catalog.models import BaseModel
from control.tenants.accounts.models import Organization
from control.tenants.quotas.file_work import Slots
from control.workflows.datasets import reader, rendering
from tests.control.factories import make_base_model, make_file
from tests.control.workflows.datasets.hostile import GOOD
from tests.control.workflows.datasets.tokenizer import write_tokenizer
from tests.source_tree import ROOT

WEB_BYTES = 1 << 30  # memory for the server process itself

SLOW_TEMPLATES = {
    "loops in loops": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "macros that call themselves twice": (
        "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(99) }}"
    ),
    "a power": "{{ 7 ** 7777777777 }}",
}
LARGE_TEMPLATES = {
    "a long text": "{{ 'a' * 10 ** 11 }}",
    "a wide field": "{{ '%99999999999d' % 1 }}",
    "a text that doubles": (
        "{% set ns = namespace(x='a') %}{% for a in range(99) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}"
    ),
    "a centred text": "{{ 'a'|center(99999999999) }}",
}


@pytest.fixture
def model(organization: Organization, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> BaseModel:
    monkeypatch.setattr(reader, "CPU_SECONDS", 1)
    write_tokenizer(tmp_path)
    model = make_base_model("tiny", organization)
    BaseModel.objects.filter(pk=model.pk).update(path=str(tmp_path))
    return model


@pytest.mark.parametrize("template_name", [*SLOW_TEMPLATES, *LARGE_TEMPLATES])
def test_a_template_that_needs_too_much_time_or_memory_is_stopped_soon(
    client: Client, organization: Organization, model: BaseModel, tmp_path: Path, template_name: str
) -> None:
    (tmp_path / "chat_template.jinja").write_text({**SLOW_TEMPLATES, **LARGE_TEMPLATES}[template_name])
    rows = (GOOD + b"\n") * 2_000  # more than fits into the buffer of the pipe to the reader's process
    file = make_file(organization, rows)
    began = time.process_time()

    response = client.post("/v1/datasets", {"file_id": file.pk, "model": "tiny"}, content_type="application/json")

    assert response.status_code == 400
    assert (response.json()["error"]["code"], response.json()["error"]["param"]) == ("chat_template_error", "model")
    assert time.process_time() - began < 5, "CPU time of this process; the reader's process has its own limit"


def test_a_template_that_needs_more_memory_than_a_reader_may_use_is_refused(
    client: Client, organization: Organization, model: BaseModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "CPU_SECONDS", 30)  # only the memory limit can stop this template
    (tmp_path / "chat_template.jinja").write_text(f"{{{{ ('a' * {rendering.MEMORY_BYTES})|length }}}}")
    file = make_file(organization, GOOD)

    response = client.post("/v1/datasets", {"file_id": file.pk, "model": "tiny"}, content_type="application/json")

    assert (response.status_code, response.json()["error"]["code"]) == (400, "chat_template_error")


def get_preview(client: Client, organization: Organization) -> Any:
    file = make_file(organization, GOOD)
    body = {"file_id": file.pk, "model": "tiny"}
    dataset = client.post("/v1/datasets", body, content_type="application/json").json()
    return client.get(f"/v1/datasets/{dataset['id']}/preview")


@pytest.mark.parametrize("name", ["chat_template.jinja", "tokenizer.json", "tokenizer_config.json"])
def test_a_model_file_that_became_a_link_does_not_show_the_content_of_its_target(
    client: Client, organization: Organization, model: BaseModel, tmp_path: Path, name: str
) -> None:
    """Customers may write to the folders of their models. A link there must not show them other files of the server."""
    secret = tmp_path.with_name(f"{tmp_path.name}-secret")
    secret.write_text('{"chat_template": "of somebody else"}')
    (tmp_path / name).unlink(missing_ok=True)
    (tmp_path / name).symlink_to(secret)

    response = get_preview(client, organization)

    assert response.json()["error"]["code"] == "tokenizer_not_available"
    assert b"somebody" not in response.content


def test_a_model_whose_folder_became_a_link_is_not_read(
    client: Client, organization: Organization, model: BaseModel, tmp_path: Path
) -> None:
    link = tmp_path.with_name(f"{tmp_path.name}-link")
    link.symlink_to(tmp_path)
    BaseModel.objects.filter(pk=model.pk).update(path=str(link))

    assert get_preview(client, organization).json()["error"]["code"] == "tokenizer_not_available"


def test_the_readers_of_a_server_process_fit_into_the_memory_of_its_container() -> None:
    values = yaml.safe_load((ROOT / "deploy/helm/slipstream/values.yaml").read_text())
    assert values["web"]["resources"]["limits"]["memory"] == "2Gi"
    assert reader.MAX_READERS * rendering.MEMORY_BYTES + WEB_BYTES <= 2 << 30


def test_no_more_readers_run_at_once_than_a_server_process_has_memory_for(
    client: Client, organization: Organization, other_organization: Organization, model: BaseModel,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    slots = Slots(reader.MAX_READERS, per_organization=1, wait_seconds=0)
    monkeypatch.setattr(reader, "reader_slots", slots)
    with ExitStack() as busy:
        for number in range(reader.MAX_READERS):
            busy.enter_context(slots.taken(f"org_{number}"))
        with pytest.raises(ApiError) as refusal, reader.model_reader(organization, model, num_shown=0):
            pass
    assert (refusal.value.status, refusal.value.code) == (429, "too_many_file_requests")


def test_the_number_of_concurrent_readers_is_limited_per_organization(
    client: Client, organization: Organization, other_organization: Organization, model: BaseModel
) -> None:
    body = {"file_id": make_file(organization, GOOD).pk, "model": "tiny"}
    with reader.model_reader(organization, model, num_shown=0):
        response = client.post("/v1/datasets", body, content_type="application/json")
        with reader.model_reader(other_organization, model, num_shown=0) as other_reader:
            assert other_reader.readings() is None, (
                "this reader must start; it returns None, because `model` has a nonexistent path"
            )

    assert (response.status_code, response.json()["error"]["code"]) == (429, "too_many_file_requests")
    assert "Retry-After" in response.headers
    assert client.post("/v1/datasets", body, content_type="application/json").status_code == 201
