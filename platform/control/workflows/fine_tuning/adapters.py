"""Fine-tuning of an adapter on the labels of a file: starts the training, and stores its result and its checkpoints.

request ─▶ both files are checked ─▶ training job ─▶ checkpoints ─▶ result
                                                         │            └─▶ adapter `ft:MODEL:SUFFIX:ID`
                                                         └─▶ an adapter from a checkpoint, on request
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from control.billing.usage.selectors import require_price
from control.core.api.errors import ApiError
from control.core.ids import fine_tuning_job_id
from control.core.storage.backends import ObjectMissing, get_storage
from control.core.storage.staging import staging_folder
from control.core.transactions import change
from control.data.files.models import File
from control.data.files.selectors import file_get
from control.models.adapters.models import Adapter
from control.models.adapters.services import CONFIG, WEIGHTS, adapter_store
from control.models.catalog.models import BaseModel
from control.models.catalog.selectors import base_model_get
from control.queue.jobs.checkpoints import checkpoint_folder
from control.queue.jobs.models import Job, JobEvent
from control.queue.jobs.protocol import LABELS_AND_HARDWARE
from control.queue.jobs.services import job_submit, queued_quota_check
from control.tenants.accounts.models import Organization
from control.tenants.audit.record import audit_record, audited
from control.tenants.quotas.file_work import file_work
from control.tenants.quotas.storage import storage_check
from control.workflows.datasets.services import labels_check
from control.workflows.fine_tuning.checkpoints import check_servable, gone, is_deleted
from control.workflows.fine_tuning.history import checkpoint_name
from control.workflows.fine_tuning.memory import FineTuningPlan, fine_tuning_memory_needed, fine_tuning_plan
from control.workflows.fine_tuning.models import FineTuningJob
from control.workflows.fine_tuning.schemas import JobInput, LabelHyperparameters
from workers.hyperparameters.fields import HyperparameterError
from workers.hyperparameters.lora import read_lora_hyperparameters
from workers.kinds import FINE_TUNED_MODEL_TYPES, LORA

_NUM_ID_CHARACTERS = 8
_NAMES = {
    "n_epochs": "epochs",
    "batch_size": "batch_rows",
    "lora_rank": "rank",
    "lora_alpha": "alpha",
    "max_row_tokens": "max_row_tokens",
    "long_rows": "long_rows",
    "packing": "packing",
}  # maps hyperparameters of a request to hyperparameters of workers
_REQUESTED = {ours: theirs for theirs, ours in _NAMES.items()} | {"learning_rate": "learning_rate_multiplier"}


def adapter_training_start(*, organization: Organization, request: JobInput) -> FineTuningJob:
    """Checks every row of both files, and queues the training.

    Raises: ApiError: 400, the model's adapters cannot be trained, a hyperparameter is invalid, or a row has no label
        (the message names the first such line); 403, the model has no price, or the storage limit is reached; 404, the
        model or a file does not exist; 429, too many jobs are queued.
    """
    hyperparameters, base_model = request.label_hyperparameters(), base_model_get(organization, request.model)
    require_price(base_model_id=base_model.pk, name=base_model.name)
    adapter_training_plan(organization=organization, request=request)
    storage_check(organization.pk, num_bytes=1)  # the result and its checkpoints will be stored
    queued_quota_check(organization.pk)  # to fail early; `job_submit` checks again, under the lock
    training_file = _labelled(organization, request.training_file, "training_file")
    validation_file = None
    if request.validation_file is not None:
        validation_file = _labelled(organization, request.validation_file, "validation_file")
    identity, seed = fine_tuning_job_id(), request.seed or 0
    chosen = worker_hyperparameters(hyperparameters)
    params = {"method": LORA, "fine_tuning_job_id": identity, "hyperparameters": chosen, "seed": seed}
    with change():
        job = job_submit(
            organization=organization,
            kind=Job.Kind.TRAINING,
            params=params,
            memory_needed=fine_tuning_memory_needed(base_model, rank=_rank(chosen)),
            min_protocol=LABELS_AND_HARDWARE,
        )
        row = FineTuningJob.objects.create(
            id=identity,
            organization=organization,
            job=job,
            base_model=base_model,
            name=adapter_name(request.model, request.suffix, identity),
            seed=seed,
            hyperparameters=hyperparameters.model_dump(exclude_none=True),
            metadata=request.metadata or {},
            training_file=training_file,
            validation_file=validation_file,
        )
        audit_record("fine_tuning_job.create", row)
    return row


def adapter_training_plan(*, organization: Organization, request: JobInput) -> FineTuningPlan:
    """Plans the memory without reading the files. Raises: ApiError: 400, also if the training fits on no device."""
    base_model = base_model_get(organization, request.model)
    _check_model(base_model)
    return fine_tuning_plan(base_model, rank=_rank(worker_hyperparameters(request.label_hyperparameters())))


def adapter_trained(*, job: FineTuningJob, folder: Path) -> Adapter:
    """Stores the result of a job as an adapter. A second call, from a repeated attempt, returns the stored adapter.

    Raises: ApiError: as `adapter_store`.
    """
    assert job.base_model is not None, "a job without a pipeline has a model"

    def assign(adapter: Adapter) -> None:
        FineTuningJob.objects.filter(pk=job.pk).update(adapter=adapter)

    existing = _stored_adapter(job)
    if existing is None:
        try:
            return adapter_store(
                organization=job.organization,
                name=job.name,
                base_model=job.base_model,
                folder=folder,
                made_from=job.pk,
                on_saved=assign,
            )
        except ApiError as error:  # an attempt that has lost its lease may have stored the adapter since
            existing = _stored_adapter(job) if error.code == "name_taken" else None
            if existing is None:
                raise
    assign(existing)
    return existing


def _stored_adapter(job: FineTuningJob) -> Adapter | None:
    """Returns the job's result if it is stored already. Customers cannot choose its name, which has a colon."""
    return Adapter.objects.filter(organization=job.organization, name=job.name).first()


@audited("fine_tuning_job.create_adapter", records_itself=True)
def checkpoint_adapter_create(*, job: FineTuningJob, checkpoint: JobEvent, name: str | None) -> Adapter:
    """Creates an adapter with the weights of a checkpoint.

    Args: name: the adapter's name; None: the name of the checkpoint.
    Raises: ApiError: 400, the job trains a speculator; 404, the checkpoint is no longer stored; or as
        `adapter_store`; 429, too many files are being read or written.
    """
    check_servable(job)
    assert job.base_model is not None, "a job that trains an adapter has a model"
    if is_deleted(job, checkpoint):
        raise gone()
    prefix = checkpoint_folder(checkpoint.job_id, step=checkpoint.data["step"], fence=checkpoint.data["fence"])
    with file_work.taken(job.organization_id), staging_folder() as folder:
        try:
            for file in (CONFIG, WEIGHTS):
                get_storage().get_file(f"{prefix}/{file}", folder / file)
        except ObjectMissing as error:
            raise gone() from error
        return adapter_store(
            organization=job.organization,
            name=name or checkpoint_name(job, checkpoint),
            base_model=job.base_model,
            folder=folder,
            made_from=job.pk,
            on_saved=lambda adapter: audit_record("fine_tuning_job.create_adapter", job),
        )


def worker_hyperparameters(given: LabelHyperparameters) -> dict[str, Any]:
    """Returns the hyperparameters that a worker reads. Those that are `auto` or absent get the worker's defaults.

    Raises: ApiError: 400, a value is outside the worker's range, for example a learning rate near zero.
    """
    values: Mapping[str, Any] = given.model_dump(exclude_none=True)
    chosen = {_NAMES[name]: value for name, value in values.items() if name in _NAMES and value != "auto"}
    if given.learning_rate_multiplier != "auto":
        chosen["learning_rate"] = min(1.0, read_lora_hyperparameters({}).learning_rate * given.learning_rate_multiplier)
    try:
        read_lora_hyperparameters(chosen)
    except HyperparameterError as error:
        param = f"method.supervised.hyperparameters.{_REQUESTED.get(error.name, error.name)}"
        raise ApiError(400, f"{param}: {error}", "invalid_value", param) from error
    return chosen


def _rank(hyperparameters: Mapping[str, Any]) -> int:
    return read_lora_hyperparameters(hyperparameters).rank


def adapter_name(model: str, suffix: str | None, identity: str) -> str:
    """`ft:<model>:<suffix>:<8 characters>`, as OpenAI names models. The last part makes the name unique."""
    return f"ft:{re.sub(r'[^A-Za-z0-9._-]+', '-', model)}:{suffix or ''}:{identity[-_NUM_ID_CHARACTERS:]}"


def given_file(organization: Organization, file_id: str, param: str, purposes: Sequence[str]) -> File:
    """Raises: ApiError: 404, there is no such file; 400, it has another purpose."""
    file = file_get(organization, file_id, param=param)
    if file.purpose not in purposes:
        names = " or ".join(repr(str(purpose)) for purpose in purposes)
        message = f"{param} must name a file with purpose {names}, got purpose {file.purpose!r}"
        raise ApiError(400, message, "invalid_value", param)
    return file


def _labelled(organization: Organization, file_id: str, param: str) -> File:
    file = given_file(organization, file_id, param, (File.Purpose.FINE_TUNE,))
    labels_check(file=file, param=param)
    return file


def _check_model(base_model: BaseModel) -> None:
    if base_model.model_type not in FINE_TUNED_MODEL_TYPES:
        known = ", ".join(FINE_TUNED_MODEL_TYPES)
        message = f"model: adapters are trained for models of type {known}, got {base_model.model_type!r}"
        raise ApiError(400, message, "fine_tuning_not_supported", "model")
