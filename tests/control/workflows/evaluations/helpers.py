"""Creates speculators for evaluations."""

from control.models.catalog.models import Speculator
from control.models.catalog.services import speculator_create, speculator_ready
from control.tenants.accounts.models import Organization
from tests.control.factories import make_base_model


def make_speculator(organization: Organization, *, kind: str = "medusa") -> Speculator:
    made = speculator_create(organization=organization, base_model=make_base_model(), name="math", kind=kind)
    return speculator_ready(speculator=made, storage_prefix="s", training={})
