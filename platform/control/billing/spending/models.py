"""Limits on the amount that an organization or one of its projects may spend in a calendar month (UTC), and the objects
whose device time counts towards the cap of a quote.
"""

from django.db import models

from control.core.ids import spend_cap_id, spend_reservation_id
from control.tenants.accounts.models import Organization, Project


class SpendCap(models.Model):
    id = models.CharField(primary_key=True, max_length=40, default=spend_cap_id, editable=False)
    organization = models.ForeignKey(Organization, on_delete=models.CASCADE, related_name="spend_caps")
    project = models.OneToOneField(
        Project,
        on_delete=models.CASCADE,
        related_name="spend_cap",
        null=True,
        blank=True,
        help_text="Null if the cap covers all projects.",
    )
    nanousd = models.BigIntegerField(help_text="Limit per month in billionths of a US dollar.")
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["organization"], condition=models.Q(project=None), name="spend_cap_once_per_organization"
            ),
            models.CheckConstraint(condition=models.Q(nanousd__gte=0), name="spend_cap_not_negative"),
        ]

    def __str__(self) -> str:
        return f"{self.nanousd / 1e9:g} USD a month"


class SpendReservation(models.Model):
    """The most that a request in progress can cost. It counts as spent until the request's usage is written.

    The gateway extends `expires_at` while the request runs, so the reservation of a process that died expires.
    """

    id = models.CharField(primary_key=True, max_length=40, default=spend_reservation_id, editable=False)
    organization = models.ForeignKey(Organization, on_delete=models.CASCADE, related_name="+")
    project_id = models.CharField(max_length=40, blank=True)
    nanousd = models.BigIntegerField()
    expires_at = models.DateTimeField()

    def __str__(self) -> str:
        return f"{self.nanousd / 1e9:g} USD until {self.expires_at:%Y-%m-%d %H:%M:%S}"


class QuotedUse(models.Model):
    """A job or deployment whose device time counts towards the cap of a quote. Ids are plain text, as in the ledger.

    The row is written in the transaction that creates the object.
    """

    object_id = models.CharField(primary_key=True, max_length=40, editable=False)
    organization = models.ForeignKey(Organization, on_delete=models.CASCADE, related_name="+")
    quote_id = models.CharField(max_length=40, db_index=True)

    def __str__(self) -> str:
        return f"{self.object_id} under {self.quote_id}"
