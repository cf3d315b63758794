"""OpenAI's batch object. A job of kind `batch` does the work; this row holds the fields that the API shows."""

from django.db import models

from control.core.ids import batch_id
from control.data.files.models import File
from control.models.catalog.models import BaseModel
from control.queue.jobs.models import Job
from control.tenants.accounts.models import Organization
from control.tenants.accounts.projects import ProjectObject

_OPEN = ("validating", "in_progress", "finalizing")


class Batch(ProjectObject):
    class Status(models.TextChoices):
        VALIDATING = "validating"
        FAILED = "failed"
        IN_PROGRESS = "in_progress"
        FINALIZING = "finalizing"
        COMPLETED = "completed"
        EXPIRED = "expired"
        CANCELLING = "cancelling"
        CANCELLED = "cancelled"

    class OnTruncation(models.TextChoices):
        KEEP = "keep"
        DROP = "drop"
        CONTINUE = "continue"

    id = models.CharField(primary_key=True, max_length=40, default=batch_id, editable=False)
    organization = models.ForeignKey(Organization, on_delete=models.CASCADE, related_name="batches")
    job = models.OneToOneField(Job, on_delete=models.PROTECT, related_name="batch")
    input_file = models.ForeignKey(File, on_delete=models.PROTECT, related_name="+")
    output_file = models.ForeignKey(File, on_delete=models.SET_NULL, related_name="+", null=True, blank=True)
    error_file = models.ForeignKey(File, on_delete=models.SET_NULL, related_name="+", null=True, blank=True)
    output_expires_after = models.DurationField(
        null=True, blank=True, help_text="How long the output and error files are kept."
    )
    tokens_key = models.CharField(
        max_length=400, blank=True, help_text="Storage key of the answers' token ids, which training uses."
    )
    base_model = models.ForeignKey(BaseModel, on_delete=models.PROTECT, related_name="+", null=True, blank=True)
    endpoint = models.CharField(max_length=64)
    completion_window = models.CharField(max_length=8, default="24h")
    status = models.CharField(max_length=16, choices=Status.choices, default=Status.VALIDATING)
    errors = models.JSONField(null=True, blank=True, help_text="[{code, line, message, param}], at most 1,000.")
    num_errors = models.PositiveIntegerField(
        default=0, help_text="Number of all bad lines, also of those that `errors` does not list."
    )
    warnings = models.JSONField(default=list, blank=True)
    metadata = models.JSONField(default=dict, blank=True)
    usage = models.JSONField(default=dict, blank=True)
    cost_nanousd = models.BigIntegerField(default=0, db_default=0, help_text="Cost of the committed shards.")
    quote = models.ForeignKey("quotes.Quote", on_delete=models.SET_NULL, related_name="batches", null=True, blank=True)
    resumed_from = models.ForeignKey(
        "self",
        on_delete=models.PROTECT,
        related_name="resumptions",
        null=True,
        blank=True,
        help_text="The batch whose finished rows this batch copies.",
    )
    repair = models.JSONField(
        null=True,
        blank=True,
        help_text="Classes of rows of that batch that are answered again, and their limit: {rows, max_tokens}. "
        "Null: the unfinished rows with the limits of the input file.",
    )
    copied = models.PositiveIntegerField(default=0, db_default=0, help_text="Number of rows copied from that batch.")
    total = models.PositiveIntegerField(default=0)
    completed = models.PositiveIntegerField(default=0)
    failed = models.PositiveIntegerField(default=0)
    unanswered = models.PositiveIntegerField(
        default=0, help_text="Number of rows that were not run, because the batch was cancelled or expired."
    )
    on_truncation = models.CharField(
        max_length=8,
        choices=OnTruncation.choices,
        default=OnTruncation.KEEP,
        db_default=OnTruncation.KEEP,
        help_text="What happens to answers that reach the length limits of their rows, if they are training data.",
    )
    max_continued_tokens = models.PositiveIntegerField(
        null=True, blank=True, help_text="Limit of a continued answer in all; null: the context."
    )
    engine = models.JSONField(null=True, blank=True, help_text="The request's options of the engine; null: defaults.")
    truncated = models.JSONField(
        null=True, blank=True, help_text="Number of these answers: in_trace, in_answer, continued, unfinished."
    )
    errors_by_code = models.JSONField(default=dict, blank=True, help_text="Number of rows of the error file by code.")
    has_working_files = models.BooleanField(
        default=True, help_text="Whether the files of rows and shards, which only the job needs, still exist."
    )
    created_at = models.DateTimeField(auto_now_add=True)
    in_progress_at = models.DateTimeField(null=True, blank=True)
    expires_at = models.DateTimeField(null=True, blank=True)
    finalizing_at = models.DateTimeField(null=True, blank=True)
    completed_at = models.DateTimeField(null=True, blank=True)
    failed_at = models.DateTimeField(null=True, blank=True)
    expired_at = models.DateTimeField(null=True, blank=True)
    cancelling_at = models.DateTimeField(null=True, blank=True)
    cancelled_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        verbose_name_plural = "batches"
        indexes = [
            models.Index(fields=["organization", "-id"], name="batch_page"),
            models.Index(fields=["expires_at"], name="batch_in_window", condition=models.Q(status__in=_OPEN)),
            models.Index(fields=["id"], name="batch_untidy", condition=models.Q(has_working_files=True)),
            models.Index(fields=["tokens_key"], name="batch_tokens"),
        ]

    def __str__(self) -> str:
        return self.id
