"""A cost estimate for a dataset, or for a pipeline with its rows.

It is based on a pilot (the model answers a few rows) or on the history of past batches.
"""

from django.db import models

from control.core.ids import quote_id
from control.tenants.accounts.models import Organization
from control.tenants.accounts.projects import ProjectObject
from control.workflows.batches.models import Batch
from control.workflows.datasets.models import Dataset


class Quote(ProjectObject):
    class Basis(models.TextChoices):
        PILOT = "pilot"
        HISTORY = "history"

    class Status(models.TextChoices):
        MEASURING = "measuring"
        READY = "ready"
        FAILED = "failed"

    id = models.CharField(primary_key=True, max_length=40, default=quote_id, editable=False)
    organization = models.ForeignKey(Organization, on_delete=models.CASCADE, related_name="+")
    dataset = models.ForeignKey(Dataset, on_delete=models.CASCADE, related_name="+")
    basis = models.CharField(max_length=16, choices=Basis.choices)
    pilot = models.ForeignKey(Batch, on_delete=models.SET_NULL, related_name="+", null=True, blank=True)
    status = models.CharField(max_length=16, choices=Status.choices)
    # Estimated output tokens of the whole dataset, and the bounds of the estimate, which are null without a pilot.
    output_tokens = models.BigIntegerField(null=True, blank=True)
    output_tokens_low = models.BigIntegerField(null=True, blank=True)
    output_tokens_high = models.BigIntegerField(null=True, blank=True)
    input_nanousd = models.BigIntegerField(default=0, help_text="Price of all input tokens, at batch prices.")
    output_nanousd = models.BigIntegerField(default=0, help_text="Price of one output token.")
    pipeline = models.JSONField(
        null=True, blank=True, help_text="training, evaluation, endpoint: the pipeline that is estimated, if one is."
    )
    stages = models.JSONField(
        null=True, blank=True, help_text="The estimates of the pipeline's stages; null until the pilot has ended."
    )
    cap_nanousd = models.BigIntegerField(
        null=True, blank=True, help_text="Limit for the total cost of the work that is created with this quote."
    )
    created_at = models.DateTimeField(auto_now_add=True)

    spent_nanousd: int | None = None  # set by `selectors.spent_read`

    class Meta:
        indexes = [models.Index(fields=["organization", "-id"], name="quote_page")]

    def __str__(self) -> str:
        return self.id
