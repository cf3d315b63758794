"""A rollout of a new speculator to a deployment: a canary with this speculator first serves a share of the traffic."""

from django.db import models

from control.core.ids import rollout_id
from control.models.catalog.models import Speculator
from control.serving.deployments.models import Deployment
from control.tenants.accounts.models import Organization

_ACTIVE = ("starting", "canary", "promoting")


class Rollout(models.Model):
    class Status(models.TextChoices):
        STARTING = "starting"
        CANARY = "canary"
        PROMOTING = "promoting"
        PROMOTED = "promoted"
        ROLLED_BACK = "rolled_back"

    id = models.CharField(primary_key=True, max_length=40, default=rollout_id, editable=False)
    organization = models.ForeignKey(Organization, on_delete=models.CASCADE, related_name="rollouts")
    deployment = models.ForeignKey(Deployment, on_delete=models.CASCADE, related_name="rollouts")
    canary = models.ForeignKey(Deployment, on_delete=models.PROTECT, related_name="+")
    speculator = models.ForeignKey(Speculator, on_delete=models.PROTECT, related_name="+")
    previous = models.ForeignKey(Speculator, on_delete=models.PROTECT, related_name="+", null=True, blank=True)
    share_percent = models.PositiveSmallIntegerField(
        help_text="Share of the requests that the canary answers during the trial."
    )
    min_requests = models.PositiveIntegerField(
        help_text="Number of requests that the canary must answer before the decision."
    )
    max_acceptance_drop = models.FloatField(
        help_text="Largest accepted drop of the acceptance length, relative to the previous speculator."
    )
    max_error_rate = models.FloatField()
    max_seconds = models.PositiveIntegerField(help_text="Time limit for the canary to answer `min_requests`.")
    status = models.CharField(max_length=16, choices=Status.choices, default=Status.STARTING)
    failed_before = models.PositiveIntegerField(
        default=0, help_text="Number of failed requests of the deployment when the trial began."
    )
    reason = models.JSONField(null=True, blank=True, help_text="Reason for the decision: {code, message}")
    figures = models.JSONField(
        default=dict, blank=True, help_text="Figures of canary and stable at the time of the decision."
    )
    created_at = models.DateTimeField(auto_now_add=True)
    started_at = models.DateTimeField(null=True, blank=True, help_text="When the canary became ready for requests.")
    finished_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["deployment"], condition=models.Q(status__in=_ACTIVE), name="rollout_one_at_a_time"
            ),
        ]
        indexes = [
            models.Index(fields=["organization", "-id"], name="rollout_page"),
            models.Index(fields=["status"], name="rollout_status"),
        ]

    def __str__(self) -> str:
        return self.id
