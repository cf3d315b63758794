"""/v1/lineage: the ancestors and descendants of an object."""

from rest_framework.request import Request

from control.core.api.operation import operation
from control.tenants.authentication.views import OrganizationView
from control.workflows.lineage.graph import lineage_of
from control.workflows.lineage.schemas import LineageObject


class LineageView(OrganizationView):
    scope = "pipelines"

    @operation("lineage.retrieve", summary="Retrieve the lineage of an object", response=LineageObject)
    def get(self, request: Request, object_id: str) -> LineageObject:
        """A graph of the objects from which this object was made, and of the objects that were made from it.

        The object is a file, dataset, batch, distillation, pipeline, job, fine-tuning job, evaluation, speculator,
        deployment or rollout. Deleted objects whose ids are known are marked.
        """
        return LineageObject.of(object_id, lineage_of(self.organization, object_id))
