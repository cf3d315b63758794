"""Captured traffic: the customer's opt-in for a deployment, the organization's key, and the requests that are kept."""

from django.db import models

from control.serving.deployments.models import Deployment
from control.tenants.accounts.models import Organization

NONE = models.Value([], models.JSONField())


class Capture(models.Model):
    """The customer's opt-in to keep the requests to a deployment. Without this row no request is kept."""

    deployment = models.OneToOneField(Deployment, on_delete=models.CASCADE, primary_key=True, related_name="capture")
    organization = models.ForeignKey(Organization, on_delete=models.CASCADE, related_name="+")
    hours = models.PositiveSmallIntegerField(help_text="Age at which a request is deleted.")
    sample_percent = models.FloatField(
        default=100.0, db_default=100.0, help_text="Share of the requests that is kept, drawn at random."
    )
    redact = models.JSONField(
        default=list, db_default=NONE, blank=True, help_text="Kinds of personal data that are replaced."
    )
    redact_patterns = models.JSONField(
        default=list, db_default=NONE, blank=True, help_text="Patterns of RE2 that are replaced."
    )
    stopped = models.JSONField(
        null=True, blank=True, help_text="Why no further requests are kept: {code, message}. Null: they are kept."
    )
    created_at = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return f"{self.deployment_id}: {self.hours} h"


class CaptureKey(models.Model):
    """The key that encrypts an organization's captured requests."""

    organization = models.OneToOneField(Organization, on_delete=models.CASCADE, primary_key=True, related_name="+")
    encrypted = models.TextField()
    created_at = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return self.organization_id


class CapturedRequest(models.Model):
    """A request without its answer, because the model reproduces the answer token for token."""

    deployment = models.ForeignKey(Deployment, on_delete=models.CASCADE, related_name="+")
    organization = models.ForeignKey(Organization, on_delete=models.CASCADE, related_name="+")
    endpoint = models.CharField(max_length=40)
    body = models.JSONField(
        null=True, help_text="A body that a process of an earlier release has stored and that is not encrypted yet."
    )
    sealed = models.BinaryField(db_default=b"", help_text="The encrypted body of the request, see `sealing`.")
    size_bytes = models.BigIntegerField(
        default=0, db_default=0, help_text="0 for requests that releases before the count of stored bytes have kept."
    )
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        indexes = [
            models.Index(fields=["deployment", "created_at"], name="captured_request_age"),
            models.Index(fields=["id"], condition=models.Q(body__isnull=False), name="captured_request_plain"),
        ]

    def __str__(self) -> str:
        return f"{self.deployment_id} {self.created_at:%Y-%m-%d %H:%M}"
