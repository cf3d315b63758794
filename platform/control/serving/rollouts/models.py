"""A rollout: one change of a deployment's speculator, which a canary first serves to a share of the traffic."""

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
    share_percent = models.PositiveSmallIntegerField(help_text="Of the requests, while it is tried out.")
    min_requests = models.PositiveIntegerField(help_text="Answered by the canary before anything is decided.")
    max_acceptance_drop = models.FloatField(help_text="Of the acceptance length, against what serves now.")
    max_error_rate = models.FloatField()
    max_seconds = models.PositiveIntegerField(help_text="To get its requests in.")
    status = models.CharField(max_length=16, choices=Status.choices, default=Status.STARTING)
    failed_before = models.PositiveIntegerField(default=0, help_text="Requests that the deployment had lost by then.")
    reason = models.JSONField(null=True, blank=True, help_text="{code, message} of the decision.")
    figures = models.JSONField(default=dict, blank=True, help_text="canary and stable, when it was decided.")
    created_at = models.DateTimeField(auto_now_add=True)
    started_at = models.DateTimeField(null=True, blank=True, help_text="The canary's first request.")
    finished_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["deployment"], condition=models.Q(status__in=_ACTIVE), name="rollout_one_at_a_time"
            ),
        ]
        indexes = [models.Index(fields=["organization", "-id"], name="rollout_page")]

    def __str__(self) -> str:
        return self.id
