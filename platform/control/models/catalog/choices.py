"""Choices that the console's forms offer for an organization's models and speculators."""

from control.core.api.forms import Choices, name_choices, row_choices
from control.models.catalog.models import Speculator
from control.models.catalog.selectors import base_models_list, speculators_list
from control.tenants.accounts.models import Organization


def base_models(organization: Organization) -> Choices:
    return name_choices(base_models_list(organization).order_by("name").values_list("name", flat=True))


def ready_speculators(organization: Organization) -> Choices:
    return row_choices(speculators_list(organization).filter(status=Speculator.Status.READY))
