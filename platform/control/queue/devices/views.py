"""GET /v1/hardware."""

from rest_framework.request import Request

from control.core.api.operation import operation
from control.queue.devices.schemas import HardwareList
from control.queue.devices.selectors import hardware
from control.tenants.authentication.views import OrganizationView


class HardwareView(OrganizationView):
    """The devices that run jobs and endpoints, with their prices. Machines that do not report are left out."""

    scope = "models"

    @operation("hardware.list", response=HardwareList)
    def get(self, request: Request) -> HardwareList:
        return HardwareList.of(hardware())
