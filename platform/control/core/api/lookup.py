"""Looks up a row by its public id among the rows that the caller may see."""

from typing import TypeVar

from django.db.models import Model, QuerySet

from control.core.api.errors import ApiError

_Row = TypeVar("_Row", bound=Model)


def one_of(rows: QuerySet[_Row], identity: str, *, kind: str, param: str, by: str = "pk") -> _Row:
    """Returns the row whose column `by` is `identity`.

    Args: kind: the resource's name, used in the error's message and, with underscores, in its code.
    Raises: ApiError: 404.
    """
    row = rows.filter(**{by: identity}).first()
    if row is None:
        code = f"{kind.lower().replace(' ', '_')}_not_found"
        raise ApiError(404, f"No such {kind}: {identity[:80]!r}.", code, param)
    return row
