"""Times by the database's clock, which all processes share."""

from datetime import timedelta

from django.db.models import DateTimeField, ExpressionWrapper, Value
from django.db.models.expressions import Combinable
from django.db.models.functions import Now


def from_now(seconds: float) -> Combinable:
    """Returns the time `seconds` from now by the database's clock, because the clocks of workers may be wrong."""
    return ExpressionWrapper(Now() + Value(timedelta(seconds=seconds)), output_field=DateTimeField())
