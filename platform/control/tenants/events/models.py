"""One row for each event, written in the transaction of the change that it reports."""

from django.db import models

from control.core.ids import event_id
from control.tenants.accounts.models import Organization
from control.tenants.accounts.projects import ProjectObject


class Event(ProjectObject):
    number = models.BigAutoField(primary_key=True)
    id = models.CharField(max_length=40, unique=True, default=event_id, editable=False)
    organization = models.ForeignKey(Organization, on_delete=models.CASCADE, related_name="events")
    seq = models.BigIntegerField(
        null=True, blank=True, help_text="Position in the organization's feed; null until the event is numbered."
    )
    type = models.CharField(max_length=60)
    object_id = models.CharField(max_length=80)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["organization", "seq"], name="event_seq_per_organization")]
        indexes = [
            models.Index(fields=["organization", "number"], name="event_unnumbered", condition=models.Q(seq=None)),
            models.Index(fields=["organization", "object_id", "seq"], name="event_of_object"),
            models.Index(fields=["created_at"], name="event_age"),
        ]

    def __str__(self) -> str:
        return f"{self.type} {self.object_id}"
