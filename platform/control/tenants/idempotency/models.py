"""Idempotency keys. A row is the claim of a running request or the stored response of a completed one."""

from django.db import models

from control.tenants.accounts.models import Organization
from control.tenants.accounts.projects import ProjectObject


class IdempotencyKey(ProjectObject):
    """A key and its state. `fence` is the number of the latest claim.

    While `status` is null, the latest claim is valid until `locked_until` on the database's clock.
    """

    organization = models.ForeignKey(Organization, on_delete=models.CASCADE, related_name="+")
    route = models.CharField(max_length=300, help_text="Method and path of the request.")
    key = models.CharField(max_length=255)
    fingerprint = models.CharField(max_length=64, help_text="SHA-256 of the canonical request.")
    fence = models.PositiveIntegerField(default=1)
    locked_until = models.DateTimeField()
    status = models.PositiveSmallIntegerField(null=True, blank=True)
    body = models.TextField(blank=True, help_text="Body of the response that was sent.")
    created_at = models.DateTimeField()

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["organization", "route", "key"],
                condition=models.Q(project=None),
                name="idempotency_key_of_organization",
            ),
            models.UniqueConstraint(fields=["project", "route", "key"], name="idempotency_key_of_project"),
        ]
        indexes = [models.Index(fields=["created_at"], name="idempotency_key_age")]

    def __str__(self) -> str:
        return f"{self.route} {self.key}"
