"""Collects the graph of an object's ancestors and descendants.

The graph is searched in two directions from the object, generation by generation. Each generation needs at most one
query for each kind of object and for each column that names objects, however many objects it has.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from django.db.models import Q, QuerySet

from control.core.api.errors import ApiError
from control.tenants.accounts.models import Organization
from control.tenants.row_security.scope import current_project
from control.workflows.lineage.links import KINDS, LINKS, Link, columns_of, kind_of

MAX_NODES = 200
MAX_GENERATIONS = 24  # in each direction

_Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    type: str
    id: str
    name: str | None = None
    created_at: datetime | None = None  # None: the row no longer exists
    deleted: bool = False


@dataclass(slots=True)
class Graph:
    nodes: dict[str, Node] = field(default_factory=dict)
    edges: set[tuple[str, str]] = field(default_factory=set)  # (from, to): `to` was made from `from`
    truncated: bool = False  # whether the limit left objects out


def lineage_of(organization: Organization, object_id: str) -> Graph:
    """Raises: ApiError: 404, the caller sees no object of this id."""
    kind = kind_of(object_id)
    rows = {} if kind is None else _visible(organization, kind, {object_id})
    if kind is None or not rows:
        raise ApiError(404, f"No such object: {object_id[:80]!r}.", "object_not_found", "object_id")
    graph = Graph({object_id: _node(kind, rows[object_id])})
    for upwards in (True, False):
        _search(graph, organization, {kind: rows}, upwards)
    graph.edges = {edge for edge in graph.edges if graph.nodes.keys() >= set(edge)}
    return graph


def _search(graph: Graph, organization: Organization, generation: dict[str, Mapping[str, _Row]], upwards: bool) -> None:
    """Adds the ancestors (upwards) or descendants of the objects of `generation`, which has rows by kind and id."""
    for _ in range(MAX_GENERATIONS):
        found = defaultdict[str, set[str]](set)
        for link in LINKS:
            for near, far in _followed(organization, link, generation, upwards):
                graph.edges.add((far, near) if upwards else (near, far))
                found[link.parent if upwards else link.child].add(far)
        generation = {}
        for kind, ids in found.items():
            new = _limited(graph, ids - graph.nodes.keys())
            generation[kind] = _visible(organization, kind, new)
            graph.nodes |= {pk: _node(kind, row) for pk, row in generation[kind].items()}
            graph.nodes |= {pk: Node(type=kind, id=pk, deleted=True) for pk in _gone(kind, new, graph)}
        if not any(generation.values()):
            return
    graph.truncated = True


def _followed(
    organization: Organization, link: Link, generation: Mapping[str, Mapping[str, _Row]], upwards: bool
) -> Iterator[tuple[str, str]]:
    """Yields pairs of ids: an object of the generation, and an object to which the link leads from there."""
    near, far = (link.child, link.parent) if upwards else (link.parent, link.child)
    rows = generation.get(near)
    if not rows:
        return
    column = link.reverse if upwards and link.reverse else link.column
    if link.in_child == upwards and not link.reverse:  # the rows of the generation have the column
        named = ((pk, other) for pk, row in rows.items() for other in _named(link, row[column]))
        yield from ((pk, other) for pk, other in named if other and kind_of(other) == far)
        return
    referring = _rows_of(organization, far).filter(_names_one(link, column, list(rows)))
    for pk, value in referring.order_by("-pk").values_list("pk", column)[: MAX_NODES + 1]:
        yield from ((other, pk) for other in _named(link, value) if other in rows)


def _named(link: Link, value: Any) -> list[Any]:
    """Returns the ids in a value of the link's column."""
    return [one.get(link.each) for one in value or ()] if link.each else [value]


def _names_one(link: Link, column: str, ids: Sequence[str]) -> Q:
    """Returns the condition that the column of a row names one of the ids."""
    if not link.each:
        return Q(**{f"{column}__in": ids})
    return Q(*((f"{column}__icontains", each) for each in ids), _connector=Q.OR)


def _rows_of(organization: Organization, kind: str) -> QuerySet[Any]:
    """Returns the rows of a kind that the caller sees, deleted ones included."""
    rows = KINDS[kind].model._default_manager.filter(KINDS[kind].shown, organization=organization)
    project = current_project()
    return rows if project is None else rows.filter(**{KINDS[kind].project: project})


def _visible(organization: Organization, kind: str, ids: Iterable[str]) -> Mapping[str, _Row]:
    """Returns the rows by id, with name, time of creation and the columns that name other objects."""
    if not ids:
        return {}
    declared = KINDS[kind]
    rows = _rows_of(organization, kind).filter(pk__in=ids)
    names = {"pk", "created_at", *columns_of(kind), *([declared.name] if declared.name else [])}
    found: dict[str, dict[str, Any]] = {row["pk"]: dict(row) for row in rows.values(*names)}
    if declared.gone is not None:
        for pk in rows.filter(declared.gone).values_list("pk", flat=True):
            found[pk]["is_gone"] = True
    return found


def _gone(kind: str, ids: set[str], graph: Graph) -> list[str]:
    """Returns the ids whose rows no longer exist. Ids of existing rows that the caller may not see are left out."""
    missing = ids - graph.nodes.keys()
    if not missing:
        return []
    existing = KINDS[kind].model._default_manager.filter(pk__in=missing).values_list("pk", flat=True)
    return sorted(missing - set(existing))


def _limited(graph: Graph, ids: set[str]) -> set[str]:
    """Returns the newest of the ids for which the graph has room."""
    room = MAX_NODES - len(graph.nodes)
    graph.truncated |= len(ids) > room
    return set(sorted(ids, reverse=True)[:room])


def _node(kind: str, row: _Row) -> Node:
    name = row[KINDS[kind].name] if KINDS[kind].name else None
    return Node(
        type=kind, id=row["pk"], name=name or None, created_at=row["created_at"], deleted=bool(row.get("is_gone"))
    )
