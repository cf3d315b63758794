"""Draws the lineage of an object as inline SVG: ancestors to the left, descendants to the right."""

from collections import defaultdict

from django.contrib.admin.utils import quote
from django.db.models import Model
from django.template.loader import render_to_string
from django.urls import NoReverseMatch, reverse
from django.utils.safestring import SafeString

from control.tenants.accounts.models import Organization
from control.workflows.lineage.graph import Graph, Node, lineage_of
from control.workflows.lineage.links import KINDS

_BOX_WIDTH, _BOX_HEIGHT = 170, 36
_COLUMN, _ROW = 220, 50  # distances of the boxes
_LABEL_LENGTH = 24


def lineage_drawing(organization: Organization, object_id: str) -> SafeString:
    graph = lineage_of(organization, object_id)
    places = _places(graph)
    boxes = [
        {
            "x": places[node.id][0],
            "y": places[node.id][1],
            "label": _label(node),
            "node": node,
            "is_subject": node.id == object_id,
            "url": "" if node.created_at is None else _url(node),
        }
        for node in graph.nodes.values()
    ]
    lines = [
        {
            "x1": places[source][0] + _BOX_WIDTH,
            "y1": places[source][1] + _BOX_HEIGHT / 2,
            "x2": places[target][0],
            "y2": places[target][1] + _BOX_HEIGHT / 2,
        }
        for source, target in sorted(graph.edges)
    ]
    context = {
        "boxes": boxes,
        "lines": lines,
        "width": max(x for x, _ in places.values()) + _BOX_WIDTH + 2,
        "height": max(y for _, y in places.values()) + _BOX_HEIGHT + 2,
        "truncated": graph.truncated,
    }
    return render_to_string("console/lineage.html", context)


def _places(graph: Graph) -> dict[str, tuple[int, int]]:
    """Returns the left upper corner of each node's box. An object stands to the right of all from which it was made."""
    column = dict.fromkeys(graph.nodes, 0)
    for _ in graph.nodes:  # a path has at most as many edges as there are nodes
        later = {target: column[source] + 1 for source, target in graph.edges if column[target] <= column[source]}
        if not later:
            break
        column |= later
    rows = defaultdict[int, int](int)
    places = {}
    for identity in sorted(graph.nodes):
        places[identity] = (1 + column[identity] * _COLUMN, 1 + rows[column[identity]] * _ROW)
        rows[column[identity]] += 1
    return places


def _label(node: Node) -> str:
    text = node.name or node.id
    return text if len(text) <= _LABEL_LENGTH else f"{text[:_LABEL_LENGTH]}…"


def _url(node: Node) -> str:
    """Returns the address of the object's page; empty if objects of its kind have none."""
    model: type[Model] = KINDS[node.type].model
    try:
        return reverse(f"admin:{model._meta.app_label}_{model._meta.model_name}_change", args=[quote(node.id)])
    except NoReverseMatch:
        return ""
