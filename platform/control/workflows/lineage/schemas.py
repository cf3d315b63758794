"""The response of a graph of lineage."""

from typing import Annotated, Literal, Self

from pydantic import Field

from control.core.api.schemas import OneOf, ResponseModel, Unix
from control.workflows.lineage.graph import Graph
from control.workflows.lineage.links import KINDS


class LineageNode(ResponseModel):
    type: Annotated[str, OneOf(KINDS)]
    id: str
    name: str | None
    created_at: Unix | None = Field(
        description="When the object was created. Null if the object is deleted and only its id is known."
    )
    deleted: bool


class LineageEdge(ResponseModel):
    source: str = Field(description="The id of the object from which `target` was made.")
    target: str


class LineageObject(ResponseModel):
    id: str
    object: Literal["lineage"] = "lineage"
    nodes: list[LineageNode] = Field(description="The object itself, its ancestors and its descendants.")
    edges: list[LineageEdge]
    truncated: bool = Field(description="Whether objects were left out, because there are more than 200.")

    @classmethod
    def of(cls, object_id: str, graph: Graph) -> Self:
        nodes = [LineageNode.from_row(node) for _, node in sorted(graph.nodes.items())]
        edges = [LineageEdge(source=source, target=target) for source, target in sorted(graph.edges)]
        return cls(id=object_id, nodes=nodes, edges=edges, truncated=graph.truncated)
