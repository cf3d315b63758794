"""A pipeline makes a speculator from prompts and deploys it, in the stages distil, train, evaluate, gate, deploy."""

from django.db import models

from control.core.ids import pipeline_id
from control.data.files.models import File
from control.models.catalog.models import BaseModel, Speculator
from control.queue.jobs.models import Job
from control.serving.deployments.models import Deployment
from control.tenants.accounts.models import Organization
from control.tenants.accounts.projects import ProjectObject
from control.workflows.batches.models import Batch
from control.workflows.quotes.models import Quote


class Pipeline(ProjectObject):
    class Status(models.TextChoices):
        DISTILLING = "distilling"
        TRAINING = "training"
        EVALUATING = "evaluating"
        GATING = "gating"
        DEPLOYING = "deploying"
        LIVE = "live"
        SUCCEEDED = "succeeded"  # the report passed the gate, and the customer wanted no deployment
        REJECTED = "rejected"  # the report did not pass the gate: nothing is deployed, all results are kept
        FAILED = "failed"
        CANCELLED = "cancelled"

    class Answers(models.TextChoices):
        MODEL = "model"  # the base model answers the prompts
        FILE = "file"  # the rows of `prompts_file` have the answers

    id = models.CharField(primary_key=True, max_length=40, default=pipeline_id, editable=False)
    organization = models.ForeignKey(Organization, on_delete=models.CASCADE, related_name="pipelines")
    name = models.CharField(max_length=64, help_text="The speculator and the deployment get this name, too.")
    base_model = models.ForeignKey(BaseModel, on_delete=models.PROTECT, related_name="pipelines")
    prompts_file = models.ForeignKey(File, on_delete=models.PROTECT, related_name="+")
    held_out_file = models.ForeignKey(File, on_delete=models.PROTECT, related_name="+")
    held_out_duplicates = models.PositiveIntegerField(
        default=0, db_default=0, help_text="Rows of the held-out file that are not evaluated: they are trained on."
    )
    contamination = models.JSONField(
        null=True, blank=True, help_text="policy, num_dropped, exact, near: training prompts like held-out prompts."
    )
    sensitive = models.JSONField(
        null=True, blank=True, help_text="By parameter: secrets and personal data in the file; null: no scan."
    )
    answers = models.CharField(
        max_length=8, choices=Answers.choices, default=Answers.MODEL, db_default=Answers.MODEL.value
    )
    distillation = models.JSONField(null=True, blank=True, help_text="on_truncation, max_continued_tokens")
    training = models.JSONField(default=dict, blank=True, help_text="kind and hyperparameters")
    evaluation = models.JSONField(default=dict, blank=True, help_text="concurrencies, max_tokens")
    engine = models.JSONField(null=True, blank=True, help_text="The request's options of the engine; null: defaults.")
    hardware = models.CharField(
        max_length=80,
        blank=True,
        default="",
        db_default="",
        help_text="Kind or model of the devices of all stages; empty: any.",
    )
    gate = models.JSONField(default=dict, blank=True, help_text="min_speedup, min_acceptance_length, outputs_equal")
    deploy = models.BooleanField(default=True)
    status = models.CharField(max_length=16, choices=Status.choices, default=Status.DISTILLING)
    error = models.JSONField(null=True, blank=True)
    batch = models.ForeignKey(Batch, on_delete=models.PROTECT, related_name="+", null=True, blank=True)
    training_job = models.ForeignKey(Job, on_delete=models.PROTECT, related_name="+", null=True, blank=True)
    evaluation_job = models.ForeignKey(Job, on_delete=models.PROTECT, related_name="+", null=True, blank=True)
    speculator = models.ForeignKey(Speculator, on_delete=models.PROTECT, related_name="+", null=True, blank=True)
    deployment = models.ForeignKey(Deployment, on_delete=models.PROTECT, related_name="+", null=True, blank=True)
    paused = models.JSONField(
        null=True, blank=True, help_text="Why the endpoint waits or is stopped: {code, message, cap_id} of the quote."
    )
    quote = models.ForeignKey(Quote, on_delete=models.SET_NULL, related_name="+", null=True, blank=True)
    created_at = models.DateTimeField(auto_now_add=True)
    finished_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        indexes = [models.Index(fields=["status"], name="pipeline_status")]

    def __str__(self) -> str:
        return self.name


class PipelineEvent(models.Model):
    """A transition of a pipeline's status. The API reads the start and the end of each stage from these rows."""

    pipeline = models.ForeignKey(Pipeline, on_delete=models.CASCADE, related_name="events")
    status = models.CharField(max_length=16, choices=Pipeline.Status.choices)
    data = models.JSONField(default=dict)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["id"]

    def __str__(self) -> str:
        return f"{self.pipeline_id} {self.status}"
