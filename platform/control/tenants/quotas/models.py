"""Limits of single organizations on resources that all organizations share, and the counters of stored bytes."""

from django.db import models
from django.db.models.functions import Now

from control.tenants.accounts.models import Organization


class Limits(models.Model):
    """Values that override the defaults of the settings; null means the default."""

    organization = models.OneToOneField(Organization, on_delete=models.CASCADE, primary_key=True, related_name="limits")
    queued_jobs = models.PositiveIntegerField(null=True, blank=True)
    running_jobs = models.PositiveIntegerField(null=True, blank=True)
    deployments = models.PositiveIntegerField(null=True, blank=True)
    devices = models.PositiveIntegerField(null=True, blank=True)
    storage_bytes = models.PositiveBigIntegerField(null=True, blank=True)
    requests_per_minute = models.PositiveIntegerField(null=True, blank=True)

    class Meta:
        verbose_name_plural = "limits"

    def __str__(self) -> str:
        return f"limits of {self.organization_id}"


class StoredPart(models.TextChoices):
    FILES = "files"
    UPLOADS = "uploads"  # parts of unfinished uploads
    ADAPTERS = "adapters"
    CAPTURES = "captures"
    CHECKPOINTS = "checkpoints"  # adapters in the checkpoints of ended fine-tuning jobs


class StoredBytes(models.Model):
    """Counters of the bytes that an organization stores. `storage` changes them; without a row, nothing is stored."""

    organization = models.OneToOneField(Organization, on_delete=models.CASCADE, primary_key=True, related_name="+")
    files_bytes = models.BigIntegerField(default=0)
    uploads_bytes = models.BigIntegerField(default=0)
    adapters_bytes = models.BigIntegerField(default=0)
    captures_bytes = models.BigIntegerField(default=0)
    checkpoints_bytes = models.BigIntegerField(default=0, db_default=0)

    class Meta:
        verbose_name_plural = "stored bytes"

    def __str__(self) -> str:
        return f"stored bytes of {self.organization_id}"


class StorageReservation(models.Model):
    """An object that is being stored: its bytes are counted, and its own row does not exist yet."""

    storage_key = models.CharField(max_length=400, primary_key=True)
    organization = models.ForeignKey(Organization, on_delete=models.CASCADE, related_name="+")
    part = models.CharField(max_length=16, choices=StoredPart)
    size_bytes = models.BigIntegerField()
    created_at = models.DateTimeField(db_default=Now(), db_index=True)

    def __str__(self) -> str:
        return self.storage_key
