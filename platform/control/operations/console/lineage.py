"""The lineage page, which draws the lineage of an object: ancestors to the left, descendants to the right.

It is a page of its own, because reading the lineage takes queries for each kind of object in each generation.
"""

from collections import defaultdict
from typing import Any

from django.contrib import admin
from django.contrib.admin.utils import quote
from django.db.models import Model
from django.http import Http404, HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import NoReverseMatch, reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString

from control.operations.console.base import rows_of
from control.workflows.lineage.graph import Graph, Node, lineage_of
from control.workflows.lineage.links import KINDS, kind_of

_BOX_WIDTH, _BOX_HEIGHT = 170, 36
_COLUMN, _ROW = 220, 50  # distances between the left upper corners of neighbouring boxes
_LABEL_LENGTH = 24


def lineage_link(object_id: str) -> SafeString:
    """Returns a link to the lineage page of an object."""
    return format_html('<a class="console-link" href="{}">Show the lineage</a>', reverse("lineage", args=[object_id]))


def lineage(request: HttpRequest, object_id: str) -> HttpResponse:
    """Answers with the lineage page of an object that the caller may view."""
    kind = kind_of(object_id)
    model = None if kind is None else KINDS[kind].model
    if model is None or not admin.site.is_registered(model):
        raise Http404
    row = rows_of(model, request).filter(pk=object_id).first()
    if row is None:
        raise Http404
    context = {
        **admin.site.each_context(request),
        "title": f"Lineage of {row}",
        **_drawing(lineage_of(row.organization, object_id), object_id),
    }
    return TemplateResponse(request, "console/lineage.html", context)


def _drawing(graph: Graph, object_id: str) -> dict[str, Any]:
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
    return {
        "boxes": boxes,
        "lines": lines,
        "width": max(x for x, _ in places.values()) + _BOX_WIDTH + 2,
        "height": max(y for _, y in places.values()) + _BOX_HEIGHT + 2,
        "truncated": graph.truncated,
    }


def _places(graph: Graph) -> dict[str, tuple[int, int]]:
    """Returns the left upper corner of each node's box. Each object is to the right of its ancestors."""
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
