"""The tables whose rows belong to an organization, derived from the models, so that no table can be forgotten.

A row belongs to the organization to which its foreign key points, or to the organization of its parent row. Row-level
security (`tenants.row_security.policies`) has the same rule.
"""

from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from django.apps import apps
from django.db import models
from django.db.models import QuerySet

from control.tenants.accounts.models import Organization

_Model = type[models.Model]
_Key = models.ForeignKey[Any, Any]


@dataclass(frozen=True, slots=True)
class OwnedTable:
    model: _Model
    lookup: str  # the path to the organization's id, such as `job__organization`

    @property
    def label(self) -> str:
        return self.model._meta.label

    def rows(self, organization_id: str) -> QuerySet[Any]:
        return self.model._base_manager.filter(**{self.lookup: organization_id}).order_by()


def owned_tables() -> list[OwnedTable]:
    """Returns all tables with rows that belong to organizations, sorted by label. `Organization` is not among them."""
    found = [(model, _lookup(model)) for model in apps.get_models(include_auto_created=True)]
    owned = [OwnedTable(model, lookup) for model, lookup in found if lookup]
    return sorted(owned, key=lambda table: table.label)


def _lookup(model: _Model, below: tuple[_Model, ...] = ()) -> str | None:
    """Returns the path from the model to its organization; None if the model's rows belong to none.

    Args: below: the models through which this model was reached. They are not followed again.
    """
    if model is Organization:
        return None
    keys = _foreign_keys(model)
    if direct := next((key for key in keys if key.related_model is Organization), None):
        return direct.name
    for key in keys:
        parent: Any = key.related_model
        if not key.null and parent not in (model, *below) and (path := _lookup(parent, (model, *below))) is not None:
            return f"{key.name}__{path}"
    return None


@dataclass(frozen=True, slots=True)
class ErasureOrder:
    tables: tuple[OwnedTable, ...]  # no table comes before one that refers to it
    # Columns that are set to null first, because otherwise some tables would refer to each other in a circle.
    cleared: tuple[tuple[OwnedTable, str], ...]


def erasure_order(tables: list[OwnedTable]) -> ErasureOrder:
    """Returns the order in which rows can be deleted without violating a foreign key."""
    left = {table.model: table for table in tables}
    referring = {model: [key for key in _foreign_keys(model) if key.related_model in left] for model in left}
    ordered: list[OwnedTable] = []
    cleared: list[tuple[OwnedTable, str]] = []
    while left:
        referred = {key.related_model for model in left for key in referring[model]}
        free = [model for model in left if model not in referred]
        if free:
            ordered += [left.pop(model) for model in free]
            continue
        model, key = next(_links_of_circles(referring, left))
        cleared.append((left[model], key.attname))
        referring[model].remove(key)
    return ErasureOrder(tuple(ordered), tuple(cleared))


def _links_of_circles(referring: Mapping[_Model, list[_Key]], left: Container[_Model]) -> Iterator[tuple[_Model, _Key]]:
    """Yields the nullable foreign keys whose target refers back to their table, directly or through other tables."""
    for model, keys in referring.items():
        for key in keys:
            if model in left and key.null and _refers(key.related_model, model, referring, set()):
                yield model, key


def _refers(model: Any, to: _Model, referring: Mapping[_Model, list[_Key]], seen: set[_Model]) -> bool:
    if model is to:
        return True
    seen.add(model)
    targets: list[Any] = [key.related_model for key in referring[model]]
    return any(_refers(target, to, referring, seen) for target in targets if target not in seen)


def _foreign_keys(model: _Model) -> list[_Key]:
    return [field for field in model._meta.concrete_fields if isinstance(field, models.ForeignKey)]
