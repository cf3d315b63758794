"""An evaluation of a speculator on held-out prompts. The evaluation's job has the progress and the report."""

from django.db import models

from control.core.ids import evaluation_id
from control.data.files.models import File
from control.models.catalog.models import Speculator
from control.queue.jobs.models import Job
from control.tenants.accounts.models import Organization
from control.tenants.accounts.projects import ProjectObject


class Evaluation(ProjectObject):
    id = models.CharField(primary_key=True, max_length=40, default=evaluation_id, editable=False)
    organization = models.ForeignKey(Organization, on_delete=models.CASCADE, related_name="evaluations")
    speculator = models.ForeignKey(Speculator, on_delete=models.CASCADE, related_name="evaluations")
    job = models.OneToOneField(Job, on_delete=models.PROTECT, related_name="evaluation")
    prompts_file = models.ForeignKey(File, on_delete=models.PROTECT, related_name="+", null=True, blank=True)
    settings = models.JSONField(
        default=dict, help_text="concurrencies, max_tokens, repeats, price_per_gpu_hour, engine, compare_with"
    )
    contamination = models.JSONField(
        null=True, blank=True, help_text="exact, near: prompts that the speculator was trained on, or ones like them."
    )
    certificate = models.JSONField(null=True, blank=True, help_text="The signed certificate, which is set once.")
    plots_prefix = models.CharField(
        max_length=400, blank=True, help_text="Prefix of the storage keys of report.png and report.svg."
    )
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        indexes = [models.Index(fields=["organization", "-id"], name="evaluation_page")]

    def __str__(self) -> str:
        return self.id
