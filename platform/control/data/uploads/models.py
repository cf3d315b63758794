"""An upload collects parts. The request that completes the upload names the order of its parts and creates the file."""

from django.db import models

from control.core.ids import upload_id, upload_part_id
from control.data.files.models import File
from control.tenants.accounts.models import Organization
from control.tenants.accounts.projects import ProjectObject


class Upload(ProjectObject):
    class Status(models.TextChoices):
        PENDING = "pending"
        COMPLETED = "completed"
        CANCELLED = "cancelled"
        EXPIRED = "expired"

    id = models.CharField(primary_key=True, max_length=40, default=upload_id, editable=False)
    organization = models.ForeignKey(Organization, on_delete=models.CASCADE, related_name="+")
    filename = models.CharField(max_length=255)
    purpose = models.CharField(max_length=24, choices=File.Purpose.choices)
    mime_type = models.CharField(max_length=120)
    size_bytes = models.BigIntegerField(
        help_text="Size of the whole file, as the request that created the upload declared it."
    )
    file_expires_after = models.DurationField(null=True, blank=True)
    status = models.CharField(max_length=16, choices=Status.choices, default=Status.PENDING)
    file = models.OneToOneField(File, on_delete=models.PROTECT, related_name="+", null=True, blank=True)
    created_at = models.DateTimeField(auto_now_add=True)
    expires_at = models.DateTimeField()

    has_parts = models.BooleanField(
        default=True, db_default=True, help_text="False once the upload has ended and its parts are deleted."
    )

    class Meta:
        indexes = [
            models.Index(fields=["status", "expires_at"], name="upload_expiry"),
            models.Index(fields=["id"], name="upload_with_parts", condition=models.Q(has_parts=True)),
        ]

    def __str__(self) -> str:
        return f"{self.filename} ({self.id})"


class UploadPart(models.Model):
    """A part of an upload. Its bytes are deleted before its row, so that a row exists for all stored bytes."""

    id = models.CharField(primary_key=True, max_length=40, default=upload_part_id, editable=False)
    upload = models.ForeignKey(Upload, on_delete=models.CASCADE, related_name="parts")
    size_bytes = models.BigIntegerField()
    storage_key = models.CharField(max_length=400, unique=True)
    created_at = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return self.id
