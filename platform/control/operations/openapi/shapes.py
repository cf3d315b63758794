"""Shapes that all answers share; resources import them from `control.core.api.schemas`."""

from pydantic import Field

from control.core.api.schemas import Deleted as Deleted
from control.core.api.schemas import Error as Error
from control.core.api.schemas import Figures as Figures
from control.core.api.schemas import Page as Page
from control.core.api.schemas import ResponseModel
from control.core.api.schemas import Unix as Unix

Shape = ResponseModel


class Paused(Shape):
    """Why work waits: `spend_cap_reached`, until the cap is raised or removed, or the next month; `paused_on_request`,
    until its fine-tuning job is resumed."""

    code: str
    message: str
    cap_id: str | None = Field(description="Of a spend cap or a quote.")
