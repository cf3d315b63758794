"""A distillation: a batch whose answers are training data. Its state is the state of the batch."""

from django.db import models

from control.core.ids import distillation_id
from control.tenants.accounts.models import Organization
from control.tenants.accounts.projects import ProjectObject
from control.workflows.batches.models import Batch


class Distillation(ProjectObject):
    id = models.CharField(primary_key=True, max_length=40, default=distillation_id, editable=False)
    organization = models.ForeignKey(Organization, on_delete=models.CASCADE, related_name="distillations")
    batch = models.OneToOneField(Batch, on_delete=models.PROTECT, related_name="distillation")
    duplicates = models.JSONField(null=True, blank=True, help_text="exact, near: equal and similar prompts.")
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        indexes = [models.Index(fields=["organization", "-id"], name="distillation_page")]

    def __str__(self) -> str:
        return self.id
