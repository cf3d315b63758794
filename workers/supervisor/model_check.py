"""Checks the folder of a model that a customer registers.

The check runs in the supervisor, not in a child process, because it only reads files and does not load the model.
"""

from collections.abc import Mapping
from typing import Any

from control.models.catalog.folder import UnusableModel
from control.models.catalog.intake import base_model_accept, base_model_refuse
from control.models.catalog.models import BaseModel
from control.models.catalog.sources import source_inspect
from control.queue.jobs.failures import Failure
from workers.supervisor.attempt import Attempt, Ending


class ModelCheckHandler:
    """Handles jobs that check a model. The `params` of such a job contain `base_model_id`."""

    def run(self, attempt: Attempt) -> Mapping[str, Any]:
        base_model = _base_model(attempt)
        if base_model is None:
            return {"status": "deleted"}
        try:
            folder = source_inspect(base_model)
        except UnusableModel as error:
            attempt.lease.check()
            base_model_refuse(base_model=base_model, code=error.code, message=error.message)
            return {"status": BaseModel.Status.REFUSED.value, "code": error.code}
        attempt.lease.check()
        base_model_accept(base_model=base_model, folder=folder)
        return {"status": BaseModel.Status.READY.value}

    def end(self, attempt: Attempt, ending: Ending, failure: Failure | None) -> None:
        base_model = _base_model(attempt)
        if base_model is not None:
            message = "The check was cancelled." if failure is None else failure.message
            base_model_refuse(base_model=base_model, code=failure.code if failure else "cancelled", message=message)


def _base_model(attempt: Attempt) -> BaseModel | None:
    return BaseModel.objects.filter(
        pk=attempt.job.params["base_model_id"], organization=attempt.job.organization_id
    ).first()
