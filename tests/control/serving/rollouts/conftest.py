"""A ready deployment with a speculator, and another speculator for the same model."""

import pytest

from control.models.catalog.models import Speculator
from control.serving.deployments.models import Deployment
from control.tenants.accounts.models import Organization
from tests.control.factories import make_base_model
from tests.control.serving.deployments.support import State, make_speculator
from tests.control.serving.rollouts.support import update_deployment


@pytest.fixture
def deployment(organization: Organization) -> Deployment:
    model = make_base_model()
    old = make_speculator(model, organization, version=1)
    made = Deployment.objects.create(organization=organization, name="support", base_model=model, speculator=old)
    return update_deployment(made, state=State.READY, port=1)


@pytest.fixture
def new_speculator(deployment: Deployment, organization: Organization) -> Speculator:
    return make_speculator(deployment.base_model, organization, version=2)
