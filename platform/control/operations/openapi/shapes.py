"""Shapes that all answers share; resources import them from `control.core.api.schemas`."""

from control.core.api.schemas import Deleted as Deleted
from control.core.api.schemas import Error as Error
from control.core.api.schemas import Figures as Figures
from control.core.api.schemas import Page as Page
from control.core.api.schemas import ResponseModel
from control.core.api.schemas import Unix as Unix
from control.queue.jobs.schemas import Paused as Paused

Shape = ResponseModel
