"""Checks a model that a customer registers: first its files, then, in a child process, its perplexity on a text."""

from collections.abc import Mapping
from typing import Any

from control.core.settings.config import get_config
from control.models.catalog.folder import ModelFolder, UnusableModel
from control.models.catalog.intake import base_model_accept, base_model_refuse
from control.models.catalog.models import BaseModel
from control.models.catalog.plausibility import implausibility
from control.models.catalog.sources import source_inspect
from control.queue.jobs.failures import Failure
from workers.contracts import FailureClass, ModelCheckSpec
from workers.supervisor.attempt import Attempt, Ending
from workers.supervisor.outcomes import AttemptFailed
from workers.supervisor.run_child import run_child


class ModelCheckHandler:
    """Handles jobs that check a model. The `params` of such a job contain `base_model_id`."""

    def run(self, attempt: Attempt) -> Mapping[str, Any]:
        base_model = _base_model(attempt)
        if base_model is None:
            return {"status": "deleted"}
        try:
            folder = source_inspect(base_model)
            perplexity = _plausible_perplexity(attempt, base_model, folder)
        except UnusableModel as error:
            attempt.lease.check()
            base_model_refuse(base_model=base_model, code=error.code, message=error.message)
            return {"status": BaseModel.Status.REFUSED.value, "code": error.code}
        attempt.lease.check()
        base_model_accept(base_model=base_model, folder=folder, perplexity=perplexity)
        return {"status": BaseModel.Status.READY.value, "perplexity": perplexity}

    def end(self, attempt: Attempt, ending: Ending, failure: Failure | None) -> None:
        base_model = _base_model(attempt)
        if base_model is not None:
            message = "The check was cancelled." if failure is None else failure.message
            base_model_refuse(base_model=base_model, code=failure.code if failure else "cancelled", message=message)


def _plausible_perplexity(attempt: Attempt, base_model: BaseModel, folder: ModelFolder) -> float:
    """Raises: UnusableModel: the engine cannot load the model, or its perplexity is not that of a language model."""
    spec = ModelCheckSpec(job_id=attempt.job.pk, model_dir=str(folder.path), device=attempt.device)
    try:
        result = run_child(attempt, spec, on_result=lambda _: None).result
    except AttemptFailed as error:
        failure = error.failure
        if failure.failure_class is not FailureClass.USER_CONFIG:
            raise
        raise UnusableModel(failure.code, failure.message.replace(str(folder.path), base_model.source)) from error
    measured = {name: result[name] for name in ("perplexity", "num_tokens", "num_bytes")}
    reason = implausibility(**measured, max_bits_per_byte=get_config().max_model_bits_per_byte)
    if reason is not None:
        raise UnusableModel("implausible_perplexity", reason)
    return float(result["perplexity"])


def _base_model(attempt: Attempt) -> BaseModel | None:
    return BaseModel.objects.filter(
        pk=attempt.job.params["base_model_id"], organization=attempt.job.organization_id
    ).first()
