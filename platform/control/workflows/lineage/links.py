"""The kinds of objects in a graph of lineage, and the columns that say which object was made from which."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from django.db import models
from django.db.models import Q

from control.data.files.models import File
from control.models.adapters.models import Adapter
from control.models.catalog.models import Speculator
from control.queue.jobs.models import Job
from control.serving.deployments.models import Deployment
from control.serving.rollouts.models import Rollout
from control.workflows.batches.models import Batch
from control.workflows.datasets.models import Dataset
from control.workflows.distillations.models import Distillation
from control.workflows.evaluations.models import Evaluation
from control.workflows.fine_tuning.models import FineTuningJob
from control.workflows.pipelines.models import Pipeline


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    model: type[models.Model]
    prefix: str  # prefix of the ids of these objects
    name: str = ""  # the column with the object's name; empty: the objects have no names
    gone: Q | None = None  # matches rows of deleted objects
    shown: Q = field(default_factory=Q)  # matches the rows that are objects of the API
    project: str = "project_id"  # the path to the project to which the row belongs


KINDS: Mapping[str, Kind] = {
    "file": Kind(model=File, prefix="file-", name="filename", gone=Q(deleted_at__isnull=False)),
    "dataset": Kind(model=Dataset, prefix="dataset_", name="name"),
    "batch": Kind(model=Batch, prefix="batch_"),
    "distillation": Kind(model=Distillation, prefix="distill_"),
    "fine_tuning_job": Kind(model=FineTuningJob, prefix="ftjob-"),
    "pipeline": Kind(model=Pipeline, prefix="pipe_", name="name"),
    "job": Kind(model=Job, prefix="job_", name="kind"),
    "speculator": Kind(model=Speculator, prefix="spec_", name="name", gone=Q(status=Speculator.Status.DELETED)),
    "adapter": Kind(model=Adapter, prefix="adapter_", name="name"),
    "evaluation": Kind(model=Evaluation, prefix="eval_"),
    "rollout": Kind(model=Rollout, prefix="rollout_", project="deployment__project_id"),
    "deployment": Kind(
        model=Deployment,
        prefix="dep_",
        name="name",
        gone=Q(deleted_at__isnull=False),
        shown=Q(canary_of=None),  # a canary is not shown, because its rollout represents it
    ),
}


@dataclass(frozen=True, slots=True)
class Link:
    """`child` was made from `parent`, or with its help. A column in one of their two tables names the other object."""

    parent: str
    child: str
    column: str
    in_child: bool = True  # whether the column is in the child's table
    each: str = ""  # if the column is a list of objects: the member of an object that has the parent's id
    reverse: str = ""  # for a many-to-many relation: its name on the parent; `column` is its name on the child


LINKS = (
    *(Link(kind, "file", "made_from") for kind in ("file", "dataset", "deployment", "speculator")),
    Link("file", "dataset", "file_id"),
    Link("dataset", "dataset", "origin__dataset_id"),
    Link("dataset", "dataset", "origin__mix__sources", each="dataset_id"),
    Link("file", "batch", "input_file_id"),
    Link("batch", "batch", "resumed_from_id"),
    Link("batch", "file", "output_file_id", in_child=False),
    Link("batch", "file", "error_file_id", in_child=False),
    Link("batch", "distillation", "batch_id"),
    Link("file", "fine_tuning_job", "training_file_id"),
    Link("file", "fine_tuning_job", "validation_file_id"),
    Link("fine_tuning_job", "pipeline", "pipeline_id", in_child=False),
    Link("fine_tuning_job", "job", "job_id", in_child=False),
    Link("fine_tuning_job", "adapter", "adapter_id", in_child=False),
    Link("fine_tuning_job", "adapter", "made_from"),
    Link("adapter", "deployment", "adapters", reverse="deployments"),
    Link("file", "pipeline", "prompts_file_id"),
    Link("file", "pipeline", "held_out_file_id"),
    Link("batch", "pipeline", "batch_id"),
    Link("speculator", "pipeline", "training__initial_speculator"),
    Link("pipeline", "job", "training_job_id", in_child=False),
    Link("pipeline", "speculator", "speculator_id", in_child=False),
    Link("file", "evaluation", "prompts_file_id"),
    Link("speculator", "evaluation", "speculator_id"),
    Link("job", "evaluation", "job_id"),
    Link("pipeline", "job", "evaluation_job_id", in_child=False),
    Link("pipeline", "deployment", "deployment_id", in_child=False),
    Link("speculator", "deployment", "speculator_id"),
    Link("speculator", "rollout", "speculator_id"),
    Link("rollout", "deployment", "deployment_id", in_child=False),
)


def kind_of(object_id: Any) -> str | None:
    """Returns the name of the kind whose ids have the prefix of this id."""
    return next((name for name, kind in KINDS.items() if str(object_id).startswith(kind.prefix)), None)


def columns_of(kind: str) -> list[str]:
    """Returns the columns of the kind's table that name other objects."""
    own = (link for link in LINKS if not link.reverse and kind == (link.child if link.in_child else link.parent))
    return sorted({link.column for link in own})
