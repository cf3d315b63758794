"""The catalogue of hardware."""

from dataclasses import asdict
from typing import Literal, Self

from pydantic import Field

from control.core.api.schemas import ResponseModel
from control.queue.devices.selectors import Hardware


class HardwareObject(ResponseModel):
    """A group of devices with the same kind, model, memory and price. They run jobs or endpoints."""

    object: Literal["hardware"] = "hardware"
    name: str = Field(
        description="The value of `hardware` in requests for such a device. Requests may also give its `device_kind`."
    )
    device_kind: str = Field(description="`cuda` or `cpu`.")
    model: str | None = Field(description="The name of the hardware. Null if it is unknown.")
    memory_bytes: int | None = Field(
        description="The memory of one device in bytes. Null if the operators have not stated it."
    )
    price_per_hour: float | None = Field(description="US dollars per hour of one device. Null if no price is set.")
    count: int = Field(description="The number of these devices.")
    free: int = Field(description="The number of these devices that neither a job nor an endpoint uses.")


class HardwareList(ResponseModel):
    """The whole list: it has no further pages."""

    object: Literal["list"] = "list"
    data: list[HardwareObject]

    @classmethod
    def of(cls, groups: list[Hardware]) -> Self:
        return cls(data=[HardwareObject(**asdict(group)) for group in groups])
