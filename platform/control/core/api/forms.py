"""The console's forms, which resources declare beside the requests that the forms send."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.db.models import Model, QuerySet

from control.core.api.schemas import RequestModel

MAX_CHOICES = 500

Choices = Sequence[tuple[str, str]]  # value and label


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsoleForm:
    """A form in which an operator makes a request in the name of an organization."""

    title: str
    request: type[RequestModel]
    run: Callable[[Any, Any], Model]  # takes an organization, or the row that is changed, and the checked request
    choices: Callable[[Any], Mapping[str, Choices]] = lambda organization: {}  # by the path of the field
    initial: Callable[[Any], Mapping[str, Any]] = lambda row: {}


def row_choices(rows: QuerySet[Any]) -> Choices:
    """The newest `MAX_CHOICES`."""
    newest = rows.order_by("-pk")[:MAX_CHOICES]
    return [(row.pk, str(row) if row.pk in str(row) else f"{row} ({row.pk})") for row in newest]


def name_choices(names: Iterable[str]) -> Choices:
    return [(name, name) for name in names]
