"""An endpoint serves with a base speculator, whose files several organizations share."""

from pathlib import Path

from control.core.storage.backends import get_storage
from control.models.base_speculators.services import speculator_resolve
from control.models.catalog.cache import copy_folder
from control.models.catalog.models import BaseSpeculator
from control.serving.deployments.supervisor import Supervisor
from tests.control.factories import make_organization
from tests.control.serving.deployments.support import State, make_deployment, make_served_model, tick_until_state


def test_the_files_of_a_base_speculator_are_copied_for_an_endpoint(supervisor: Supervisor, tmp_path: Path) -> None:
    """The threads that copy files neither have a tenant nor see this test's transaction, so they must not query."""
    model = make_served_model(tmp_path / "model")
    (tmp_path / "original").mkdir()
    (tmp_path / "original" / "config.json").write_text("{}")
    get_storage().put_folder("base_speculators/one", tmp_path / "original")
    base = BaseSpeculator.objects.create(
        base_model=model,
        name="general",
        version=1,
        kind="medusa",
        target_revision=model.revision,
        storage_prefix="base_speculators/one",
    )
    organization = make_organization()
    speculator = speculator_resolve(organization, base.pk)
    deployment = make_deployment(model, organization, speculator=speculator)

    tick_until_state(supervisor, deployment, State.READY)

    copied = copy_folder(supervisor.config, speculator.pk)
    assert (copied / "config.json").read_text() == "{}"
