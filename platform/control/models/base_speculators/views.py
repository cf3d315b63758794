"""/v1/base_speculators: the speculators that every organization can use."""

from rest_framework.request import Request
from rest_framework.response import Response

from control.core.api.operation import PAGING, operation
from control.core.api.paging import paginate
from control.core.api.schemas import Page
from control.models.base_speculators.schemas import BaseSpeculatorObject
from control.models.base_speculators.selectors import base_speculators_list
from control.tenants.authentication.views import OrganizationView


class BaseSpeculatorsView(OrganizationView):
    scope = "speculators"

    @operation("base_speculators.list", response=Page[BaseSpeculatorObject], query=PAGING)
    def get(self, request: Request) -> Response:
        """The speculators that the operators offer to every organization. They can be used without training."""
        return paginate(base_speculators_list(), request, BaseSpeculatorObject.of)
