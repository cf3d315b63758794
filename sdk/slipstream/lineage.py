"""The ancestors and descendants of an object."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from slipstream.drivers import Steps, procedure
from slipstream.http import D, Resource, path_of
from slipstream.records import Record


@dataclass(frozen=True, slots=True, kw_only=True)
class Lineage(Record):
    id: str
    nodes: Sequence[Mapping[str, Any]]  # keys: type, id, name, created_at, deleted
    edges: Sequence[Mapping[str, Any]]  # keys: source, target; the target was made from the source
    truncated: bool  # whether the graph has more objects than the response, which has at most 200


class LineageGraphs(Resource[D]):
    @procedure
    def retrieve(self, object_id: str) -> Steps[Lineage]:
        """Return the objects from which an object was made, and the objects that were made from it.

        Args: object_id: the id of a file, dataset, batch, distillation, pipeline, job, fine-tuning job, evaluation,
            speculator, deployment or rollout.
        """
        return self.http.get(Lineage, path_of("lineage", object_id))
