"""The console's forms. A resource declares them next to the request models that the forms fill in."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.db.models import Model, QuerySet

from control.core.api.schemas import RequestModel

MAX_CHOICES = 500

Choices = Sequence[tuple[str, str]]  # value and label


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsoleForm:
    """A form with which an operator makes a request on behalf of an organization."""

    title: str
    request: type[RequestModel]
    run: Callable[[Any, Any], Model]  # arguments: the organization (or the row to change), and the validated request
    choices: Callable[[Any], Mapping[str, Choices]] = lambda organization: {}  # keys are paths of fields
    initial: Callable[[Any], Mapping[str, Any]] = lambda row: {}


def row_choices(rows: QuerySet[Any]) -> Choices:
    """Returns the newest `MAX_CHOICES` rows as choices."""
    newest = rows.order_by("-pk")[:MAX_CHOICES]
    return [(row.pk, str(row) if row.pk in str(row) else f"{row} ({row.pk})") for row in newest]


def name_choices(names: Iterable[str]) -> Choices:
    return [(name, name) for name in names]
