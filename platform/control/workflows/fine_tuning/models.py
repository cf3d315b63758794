"""OpenAI's fine-tuning job.

A pipeline does the work of a job that trains a speculator; this row holds the fields that the pipeline does not have.
A job that learns labels has no pipeline: its work is one training job, whose result is an adapter.
"""

from django.db import models

from control.core.ids import fine_tuning_job_id
from control.data.files.models import File
from control.models.adapters.models import Adapter
from control.models.catalog.models import BaseModel
from control.queue.jobs.models import Job
from control.tenants.accounts.models import Organization
from control.tenants.accounts.projects import ProjectObject
from control.workflows.pipelines.models import Pipeline


class FineTuningJob(ProjectObject):
    id = models.CharField(primary_key=True, max_length=40, default=fine_tuning_job_id, editable=False)
    organization = models.ForeignKey(Organization, on_delete=models.CASCADE, related_name="+")
    pipeline = models.OneToOneField(
        Pipeline, on_delete=models.PROTECT, related_name="fine_tuning_job", null=True, blank=True
    )
    # The following columns are those of jobs without a pipeline.
    job = models.OneToOneField(Job, on_delete=models.PROTECT, related_name="fine_tuning_job", null=True, blank=True)
    base_model = models.ForeignKey(BaseModel, on_delete=models.PROTECT, related_name="+", null=True, blank=True)
    adapter = models.ForeignKey(Adapter, on_delete=models.SET_NULL, related_name="+", null=True, blank=True)
    name = models.CharField(max_length=240, default="", db_default="", blank=True, help_text="`ft:MODEL:SUFFIX:ID`")
    seed = models.IntegerField(default=0, db_default=0)
    checkpoints = models.JSONField(
        default=dict,
        db_default=models.Value({}, models.JSONField()),
        blank=True,
        help_text="Bytes of the stored adapters in the checkpoints of an ended job, by the number of the event of the "
        "checkpoint's commit. 0: the customer has deleted it.",
    )
    checkpoint_bytes = models.BigIntegerField(default=0, db_default=0, help_text="The sum of `checkpoints`.")
    training_file = models.ForeignKey(
        File, on_delete=models.PROTECT, related_name="+", help_text="The file that the customer uploaded."
    )
    validation_file = models.ForeignKey(File, on_delete=models.PROTECT, related_name="+", null=True, blank=True)
    hyperparameters = models.JSONField(default=dict, help_text="OpenAI's hyperparameters, as the request gave them.")
    metadata = models.JSONField(default=dict, blank=True)
    created_at = models.DateTimeField(auto_now_add=True)

    has_worker: bool  # whether a worker is alive; annotated by `fine_tuning_jobs_list`

    class Meta:
        indexes = [models.Index(fields=["organization", "-id"], name="fine_tuning_job_page")]

    def __str__(self) -> str:
        return self.id
