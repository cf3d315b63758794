"""Exports of organizations. A deletion has no table of its own: see `Organization` and `AuditErasure`."""

from django.db import models

from control.core.ids import new_id
from control.tenants.accounts.models import Organization


def organization_export_id() -> str:
    return new_id("orgexport_")


class OrganizationExport(models.Model):
    """An archive of the organization's objects and files. Its parts, joined in their order, are one tar archive."""

    class Status(models.TextChoices):
        RUNNING = "running"
        COMPLETED = "completed"

    id = models.CharField(primary_key=True, max_length=40, default=organization_export_id, editable=False)
    organization = models.ForeignKey(Organization, on_delete=models.CASCADE, related_name="+")
    status = models.CharField(max_length=16, choices=Status.choices, default=Status.RUNNING)
    position = models.JSONField(default=dict, help_text="Where the next part begins, see `archive.Position`.")
    num_parts = models.PositiveIntegerField(default=0)
    size_bytes = models.BigIntegerField(default=0)
    created_at = models.DateTimeField(auto_now_add=True)
    finished_at = models.DateTimeField(null=True, blank=True)
    expires_at = models.DateTimeField(db_index=True, help_text="When the archive is deleted, complete or not.")

    def __str__(self) -> str:
        return self.id

    @property
    def prefix(self) -> str:
        """The prefix of the storage keys of the parts, including those that no row names."""
        return f"{self.organization_id}/exports/{self.pk}"


class OrganizationExportPart(models.Model):
    export = models.ForeignKey(OrganizationExport, on_delete=models.CASCADE, related_name="parts")
    number = models.PositiveIntegerField(help_text="From 0.")
    start = models.BigIntegerField(help_text="Position of its first byte in the archive.")
    size_bytes = models.BigIntegerField()
    storage_key = models.CharField(max_length=400)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["export", "number"], name="organization_export_part_once")]

    def __str__(self) -> str:
        return f"{self.export_id} part {self.number}"
