"""The catalogue of hardware."""

from dataclasses import asdict
from typing import Literal, Self

from pydantic import Field

from control.core.api.schemas import ResponseModel
from control.queue.devices.selectors import Hardware


class HardwareObject(ResponseModel):
    """Devices that run jobs or endpoints and do not differ in kind, model, memory and price."""

    object: Literal["hardware"] = "hardware"
    name: str = Field(description="The value of `hardware` in requests for such a device. A kind is a value too.")
    device_kind: str = Field(description="`cuda` or `cpu`.")
    model: str | None = Field(description="Name of the hardware. Null: unknown.")
    memory_bytes: int | None = Field(description="Memory of one device. Null: the operators have not stated it.")
    price_per_hour: float | None = Field(description="USD for one device. Null: no price is set.")
    count: int = Field(description="Number of these devices.")
    free: int = Field(description="Number of these devices that neither a job nor an endpoint holds.")


class HardwareList(ResponseModel):
    """This list has no pages."""

    object: Literal["list"] = "list"
    data: list[HardwareObject]

    @classmethod
    def of(cls, groups: list[Hardware]) -> Self:
        return cls(data=[HardwareObject(**asdict(group)) for group in groups])
