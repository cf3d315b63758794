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
    nodes: Sequence[Mapping[str, Any]]  # type, id, name, created_at, deleted
    edges: Sequence[Mapping[str, Any]]  # source, target: the target was made from the source
    truncated: bool  # whether objects were left out


class LineageGraphs(Resource[D]):
    @procedure
    def retrieve(self, object_id: str) -> Steps[Lineage]:
        """Return from which objects an object was made, and which were made from it.

        Args: object_id: of a file, dataset, batch, distillation, pipeline, job, fine-tuning job, evaluation,
            speculator, deployment or rollout.
        """
        return self.http.get(Lineage, path_of("lineage", object_id))
