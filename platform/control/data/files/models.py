"""Files. Their bytes are in storage under `storage_key`."""

from django.db import models

from control.core.ids import file_id
from control.tenants.accounts.models import Organization
from control.tenants.accounts.projects import ProjectObject


class File(ProjectObject):
    class Purpose(models.TextChoices):
        BATCH = "batch"
        BATCH_OUTPUT = "batch_output"
        FINE_TUNE = "fine-tune"
        FINE_TUNE_RESULTS = "fine-tune-results"
        USER_DATA = "user_data"
        ASSISTANTS = "assistants"
        EVALS = "evals"
        VISION = "vision"

    class Status(models.TextChoices):
        UPLOADED = "uploaded"
        PROCESSED = "processed"
        ERROR = "error"

    id = models.CharField(primary_key=True, max_length=40, default=file_id, editable=False)
    organization = models.ForeignKey(Organization, on_delete=models.CASCADE, related_name="files")
    filename = models.CharField(max_length=255)
    purpose = models.CharField(max_length=24, choices=Purpose.choices)
    size_bytes = models.BigIntegerField()
    sha256 = models.CharField(max_length=64)
    storage_key = models.CharField(max_length=400, unique=True)
    status = models.CharField(max_length=16, choices=Status.choices, default=Status.PROCESSED)
    created_at = models.DateTimeField(auto_now_add=True)
    expires_at = models.DateTimeField(null=True, blank=True)
    deleted_at = models.DateTimeField(null=True, blank=True)  # the row stays: batches refer to it
    made_from = models.CharField(
        max_length=40,
        blank=True,
        db_default="",
        default="",
        help_text="The id of the file or dataset of which it is a part, of the deployment whose captured requests it "
        "has, or of the speculator that was exported. Empty: it was uploaded, or a batch made it.",
    )

    class Meta:
        indexes = [
            models.Index(fields=["organization", "-id"], name="file_page"),
            models.Index(
                fields=["expires_at"],
                name="file_expiry",
                condition=models.Q(deleted_at=None, expires_at__isnull=False),
            ),
            models.Index(fields=["made_from"], name="file_made_from", condition=~models.Q(made_from="")),
        ]

    def __str__(self) -> str:
        return f"{self.filename} ({self.id})"
