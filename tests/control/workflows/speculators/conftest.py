"""A tiny model and an EAGLE-3 speculator whose files are in the storage."""

from pathlib import Path

import pytest
import torch

from control.core.storage.backends import get_storage
from control.models.catalog.models import BaseModel, Speculator
from control.tenants.accounts.models import Organization
from tests.control.factories import make_base_model
from tests.control.serving.deployments.support import make_speculator
from tests.tiny_model import make_tiny_model
from tests.workers.exports.speculators import write_speculator


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model"), num_layers=4, dtype=torch.bfloat16)


@pytest.fixture
def model(db: None, model_dir: Path) -> BaseModel:
    made = make_base_model("m")
    BaseModel.objects.filter(pk=made.pk).update(path=str(model_dir))
    made.refresh_from_db()
    return made


@pytest.fixture
def speculator(model: BaseModel, organization: Organization, tmp_path: Path, model_dir: Path) -> Speculator:
    made = make_speculator(model, organization, kind="eagle3", storage_prefix=f"{organization.pk}/test/eagle3")
    get_storage().put_folder(made.storage_prefix, write_speculator("eagle3", tmp_path / "own", model_dir))
    return made
