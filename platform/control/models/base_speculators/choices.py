"""Choices that the console's forms offer for speculators."""

from control.core.api.forms import Choices, row_choices
from control.models.base_speculators.selectors import base_speculators_list
from control.models.catalog.models import Speculator
from control.models.catalog.selectors import speculators_list
from control.tenants.accounts.models import Organization


def ready_speculators(organization: Organization) -> Choices:
    """The organization's ready speculators and the base speculators."""
    own = speculators_list(organization).filter(status=Speculator.Status.READY)
    return [*row_choices(own), *row_choices(base_speculators_list())]
