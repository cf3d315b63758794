"""Results of checking a file: its format, rows, tokens and bad lines."""

from django.db import models

from control.core.ids import dataset_id
from control.data.files.models import File
from control.models.catalog.models import BaseModel
from control.tenants.accounts.models import Organization
from control.workflows.datasets.formats import Format

_FORMATS = [(form.value, form.value) for form in Format]


class Dataset(models.Model):
    class Status(models.TextChoices):
        VALID = "valid"
        INVALID = "invalid"

    id = models.CharField(primary_key=True, max_length=40, default=dataset_id, editable=False)
    organization = models.ForeignKey(Organization, on_delete=models.CASCADE, related_name="+")
    file = models.ForeignKey(File, on_delete=models.PROTECT, related_name="+")
    base_model = models.ForeignKey(BaseModel, on_delete=models.PROTECT, related_name="+", null=True, blank=True)
    format = models.CharField(max_length=16, choices=_FORMATS, blank=True, help_text="Empty if no row could be read.")
    status = models.CharField(max_length=16, choices=Status.choices)
    num_rows = models.PositiveIntegerField(help_text="Valid and invalid rows, without blank lines.")
    num_answers = models.PositiveIntegerField(help_text="Number of rows with an answer.")
    num_tokens = models.BigIntegerField(null=True, blank=True, help_text="Counted with the base model's tokenizer.")
    tokens_are_exact = models.BooleanField(default=True, help_text="Whether every row was counted, not only a sample.")
    errors = models.JSONField(default=list, blank=True, help_text="[{code, line, column, ...}], at most 1,000.")
    num_errors = models.PositiveIntegerField(default=0, help_text="Number of all errors; `errors` has at most 1,000.")
    errors_by_code = models.JSONField(default=dict, blank=True)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        indexes = [models.Index(fields=["organization", "-id"], name="dataset_page")]

    def __str__(self) -> str:
        return self.id
