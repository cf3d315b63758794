"""Audit events are append-only: database triggers refuse to change or delete them, with two exceptions.

A whole month that has ended and was exported: the update that sets `AuditExport.dropped_at` makes a trigger delete
exactly the exported events (`migrations.0005_drop_exported_months`).

The events of an organization that is deleted: each increment of `AuditErasure.rounds` makes a trigger delete some of
them (`migrations.0006_erase_organizations`). The row of `AuditErasure` itself is kept forever.
"""

from django.db import models
from django.db.models.functions import Now

from control.core.ids import new_id
from control.tenants.accounts.models import Organization


def audit_event_id() -> str:
    return new_id("audit_")


def audit_export_id() -> str:
    return new_id("auditexport_")


class AuditEvent(models.Model):
    class Actor(models.TextChoices):
        API_KEY = "api_key"
        USER = "user"  # a user of the console

    id = models.CharField(primary_key=True, max_length=40, default=audit_event_id, editable=False)
    # No constraint: an event outlives the organization.
    organization = models.ForeignKey(
        Organization, on_delete=models.DO_NOTHING, db_constraint=False, null=True, related_name="+"
    )
    actor_type = models.CharField(max_length=16, choices=Actor.choices)
    actor_id = models.CharField(max_length=150)
    action = models.CharField(max_length=64, help_text="Object and verb, such as file.create.")
    object_type = models.CharField(max_length=40)
    object_id = models.CharField(max_length=80)
    ip = models.GenericIPAddressField(null=True, blank=True)
    request_id = models.CharField(max_length=128)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        indexes = [models.Index(fields=["organization", "-id"], name="audit_page")]

    def __str__(self) -> str:
        return f"{self.action} {self.object_id} by {self.actor_type} {self.actor_id}"


class AuditExport(models.Model):
    """The record of a complete export of one month (UTC). It is kept after the events are dropped."""

    id = models.CharField(primary_key=True, max_length=40, default=audit_export_id, editable=False)
    organization = models.ForeignKey(
        Organization, on_delete=models.DO_NOTHING, db_constraint=False, null=True, related_name="+"
    )
    month = models.DateField(help_text="Its first day.")
    num_events = models.PositiveIntegerField()
    sha256 = models.CharField(max_length=64, help_text="Of the exported lines.")
    created_at = models.DateTimeField(auto_now_add=True)
    dropped_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        indexes = [models.Index(fields=["organization", "month"], name="audit_export_month")]

    def __str__(self) -> str:
        return f"{self.month:%Y-%m}: {self.num_events} events"


class AuditErasure(models.Model):
    """The record that an organization was deleted, by whom and when. It contains no personal data.

    The database refuses a row before the organization's `erase_after`, and refuses to change or delete the row, except
    to increment `rounds`, and to set `finished_at` once nothing of the organization's audit log is left.
    """

    # Not a foreign key: the row belongs to the installation, and the organization ceases to exist.
    organization_id = models.CharField(primary_key=True, max_length=40)
    requested_by = models.CharField(max_length=48, help_text="The id of an API key, member or operator.")
    requested_at = models.DateTimeField()
    started_at = models.DateTimeField(db_default=Now())
    num_events = models.PositiveBigIntegerField(help_text="How many audit events the organization had at the start.")
    rounds = models.PositiveIntegerField(default=0)
    finished_at = models.DateTimeField(null=True, blank=True)

    def __str__(self) -> str:
        return self.organization_id
