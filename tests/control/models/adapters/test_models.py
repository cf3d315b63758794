"""A model whose configuration has become invalid is treated like a model whose files are not on this machine."""

import json
from pathlib import Path

import pytest
from django.test import Client

from control.models.catalog.models import BaseModel
from control.tenants.accounts.models import Organization
from tests.control.factories import make_base_model
from tests.control.models.adapters.support import make_adapter_files


@pytest.mark.parametrize("content", ["[", "[]", "[" * 100_000])
def test_an_adapter_of_a_model_with_an_invalid_configuration_can_be_created(
    client: Client, organization: Organization, tmp_path: Path, content: str
) -> None:
    model = make_base_model("mine", organization)
    BaseModel.objects.filter(pk=model.pk).update(path=str(tmp_path))
    (tmp_path / "config.json").write_text(content)
    config, weights = make_adapter_files(organization)
    body = {"name": "a", "model": "mine", "config_file": config.pk, "weights_file": weights.pk}

    response = client.post("/v1/adapters", json.dumps(body), content_type="application/json")

    assert response.status_code == 201, response.content
