"""Results of checking a file: its format, rows, tokens and bad lines."""

from django.db import models
from django.db.models import Q

from control.core.ids import dataset_id
from control.data.files.models import File
from control.models.catalog.models import BaseModel
from control.tenants.accounts.models import Organization
from control.tenants.accounts.projects import ProjectObject
from control.workflows.datasets.formats import Format

_FORMATS = [(form.value, form.value) for form in Format]


class Dataset(ProjectObject):
    class Status(models.TextChoices):
        VALID = "valid"
        INVALID = "invalid"

    id = models.CharField(primary_key=True, max_length=40, default=dataset_id, editable=False)
    organization = models.ForeignKey(Organization, on_delete=models.CASCADE, related_name="+")
    name = models.CharField(max_length=100, blank=True, default="", db_default="", help_text="Empty: no name.")
    version = models.PositiveIntegerField(
        null=True, blank=True, help_text="Counts the organization's datasets of this name; null: no name."
    )
    file = models.ForeignKey(File, on_delete=models.PROTECT, related_name="+")
    base_model = models.ForeignKey(BaseModel, on_delete=models.PROTECT, related_name="+", null=True, blank=True)
    format = models.CharField(
        max_length=16, choices=_FORMATS, blank=True, help_text="Empty if no row has a recognized format."
    )
    status = models.CharField(max_length=16, choices=Status.choices)
    num_rows = models.PositiveIntegerField(help_text="All rows, valid or not; blank lines are not counted.")
    num_answers = models.PositiveIntegerField(help_text="Number of rows that contain an answer.")
    num_tokens = models.BigIntegerField(
        null=True, blank=True, help_text="Number of prompt tokens by the base model's tokenizer."
    )
    tokens_are_exact = models.BooleanField(
        default=True, help_text="False if the tokens were counted in a sample of the rows."
    )
    errors = models.JSONField(default=list, blank=True, help_text="[{code, line, column, ...}], at most 1,000.")
    num_errors = models.PositiveIntegerField(
        default=0, help_text="Number of all bad lines, also of those that `errors` does not list."
    )
    errors_by_code = models.JSONField(default=dict, blank=True)
    duplicates = models.JSONField(null=True, blank=True, help_text="exact, near: equal and similar prompts.")
    sensitive = models.JSONField(
        null=True, blank=True, help_text="policy, num_rows, num_found, kinds: secrets and personal data; null: no scan."
    )
    origin = models.JSONField(null=True, blank=True, help_text="The datasets or the file it was made of, and how.")
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        indexes = [models.Index(fields=["organization", "-id"], name="dataset_page")]
        constraints = [
            models.UniqueConstraint(
                fields=["organization", "name", "version"], condition=~Q(name=""), name="dataset_version_once"
            )
        ]

    def __str__(self) -> str:
        return f"{self.name}@{self.version} ({self.id})" if self.name else self.id
