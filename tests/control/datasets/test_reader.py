"""S6: chat templates that compute without end or fill the memory end with an error that names them, and soon."""

import time
from pathlib import Path

import pytest
from django.test import Client

from control.accounts.models import Organization
from control.catalog.models import BaseModel
from control.datasets import reader
from tests.control.datasets.hostile import GOOD
from tests.control.datasets.tokenizer import write_tokenizer
from tests.control.factories import make_base_model, make_file

ENDLESS = {
    "loops in loops": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "macros that call themselves twice": (
        "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(99) }}"
    ),
    "a power": "{{ 7 ** 7777777777 }}",
}
LARGE = {
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


@pytest.mark.parametrize("what", [*ENDLESS, *LARGE])
def test_a_template_without_end_is_refused_soon_and_by_name(
    client: Client, organization: Organization, model: BaseModel, tmp_path: Path, what: str
) -> None:
    (tmp_path / "chat_template.jinja").write_text({**ENDLESS, **LARGE}[what])
    rows = (GOOD + b"\n") * 2_000  # more than a pipe holds
    file = make_file(organization, rows)
    began = time.process_time()

    answer = client.post("/v1/datasets", {"file_id": file.pk, "model": "tiny"}, content_type="application/json")

    assert answer.status_code == 400
    assert (answer.json()["error"]["code"], answer.json()["error"]["param"]) == ("chat_template_error", "model")
    assert time.process_time() - began < 5, "of this process; the other one has its limit"
