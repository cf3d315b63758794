"""Carries out requests for base models that come from the API or the console."""

from control.core.api.forms import ConsoleForm
from control.models.catalog.intake import base_model_submit
from control.models.catalog.models import BaseModel
from control.models.catalog.schemas import BaseModelInput
from control.tenants.accounts.models import Organization


def create_from(organization: Organization, body: BaseModelInput) -> BaseModel:
    """Raises: ApiError: as `base_model_submit`."""
    return base_model_submit(organization=organization, name=body.name, source=body.source)


REGISTER_MODEL = ConsoleForm(title="Register a base model", request=BaseModelInput, run=create_from)
