"""Limits of single organizations on resources that all organizations share."""

from django.db import models

from control.tenants.accounts.models import Organization


class Limits(models.Model):
    """Values that override the defaults of the settings; null means the default."""

    organization = models.OneToOneField(Organization, on_delete=models.CASCADE, primary_key=True, related_name="limits")
    queued_jobs = models.PositiveIntegerField(null=True, blank=True)
    running_jobs = models.PositiveIntegerField(null=True, blank=True)
    storage_bytes = models.PositiveBigIntegerField(null=True, blank=True)
    requests_per_minute = models.PositiveIntegerField(null=True, blank=True)

    class Meta:
        verbose_name_plural = "limits"

    def __str__(self) -> str:
        return f"limits of {self.organization_id}"
