"""Choices that the console's forms offer for an organization's models."""

from control.core.api.forms import Choices, name_choices
from control.models.catalog.selectors import base_models_list
from control.tenants.accounts.models import Organization


def base_models(organization: Organization) -> Choices:
    return name_choices(base_models_list(organization).order_by("name").values_list("name", flat=True))
