"""Webhook endpoints, their secrets, and the outbox of deliveries, which only the sender processes."""

from django.db import models

from control.core.ids import webhook_delivery_id, webhook_endpoint_id
from control.tenants.accounts.models import Organization
from control.tenants.accounts.projects import ProjectObject
from control.tenants.events.models import Event


class WebhookEndpoint(ProjectObject):
    class Disabled(models.TextChoices):
        BY_CUSTOMER = "by_customer"
        GONE = "gone"  # the endpoint responded with 410
        FAILING = "failing"  # all deliveries failed for days

    id = models.CharField(primary_key=True, max_length=40, default=webhook_endpoint_id, editable=False)
    organization = models.ForeignKey(Organization, on_delete=models.CASCADE, related_name="webhook_endpoints")
    url = models.CharField(max_length=2048)
    description = models.CharField(max_length=200, blank=True)
    events = models.JSONField(default=list, help_text="Patterns of event types.")
    disabled = models.CharField(
        max_length=16,
        choices=Disabled.choices,
        blank=True,
        help_text="Why the endpoint is disabled; empty if it is enabled.",
    )
    failing_since = models.DateTimeField(null=True, blank=True)
    created_at = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return self.url


class WebhookSecret(models.Model):
    """During a rotation an endpoint has two secrets, and every delivery is signed with both."""

    organization = models.ForeignKey(Organization, on_delete=models.CASCADE, related_name="+")
    endpoint = models.ForeignKey(WebhookEndpoint, on_delete=models.CASCADE, related_name="secrets")
    encrypted = models.TextField(editable=False)
    created_at = models.DateTimeField(auto_now_add=True)
    expires_at = models.DateTimeField(null=True, blank=True)

    def __str__(self) -> str:
        return f"secret of {self.endpoint_id}"


class WebhookDelivery(models.Model):
    class Status(models.TextChoices):
        PENDING = "pending"
        SUCCEEDED = "succeeded"
        FAILED = "failed"

    id = models.CharField(primary_key=True, max_length=40, default=webhook_delivery_id, editable=False)
    organization = models.ForeignKey(Organization, on_delete=models.CASCADE, related_name="+")
    endpoint = models.ForeignKey(WebhookEndpoint, on_delete=models.CASCADE, related_name="deliveries")
    event = models.ForeignKey(Event, on_delete=models.CASCADE, related_name="deliveries")
    object_id = models.CharField(
        max_length=80, help_text="The object of the event. Deliveries about one object keep their order."
    )
    status = models.CharField(max_length=16, choices=Status.choices, default=Status.PENDING)
    attempt = models.PositiveSmallIntegerField(
        default=0, help_text="Number of attempts in the current schedule, which a replay restarts."
    )
    next_attempt_at = models.DateTimeField()
    claimed_until = models.DateTimeField(null=True, blank=True)
    history = models.JSONField(
        default=list, blank=True, help_text="The latest attempts: [{at, status_code, error, milliseconds}]"
    )
    created_at = models.DateTimeField(auto_now_add=True)
    finished_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["endpoint", "event"], name="webhook_delivery_once")]
        indexes = [
            models.Index(fields=["next_attempt_at"], name="webhook_due", condition=models.Q(status="pending")),
            models.Index(
                fields=["endpoint", "next_attempt_at"], name="webhook_turn", condition=models.Q(status="pending")
            ),
            models.Index(
                fields=["endpoint", "object_id", "event"], name="webhook_order", condition=models.Q(status="pending")
            ),
        ]

    def __str__(self) -> str:
        return f"{self.event_id} to {self.endpoint_id}"
