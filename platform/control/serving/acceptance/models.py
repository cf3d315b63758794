"""The stored state of the detector of a deployment's acceptance length."""

from django.db import models

from control.serving.deployments.models import Deployment
from control.tenants.accounts.models import Organization


class AcceptanceWatch(models.Model):
    """The state of the detector for the speculator that a deployment serves. A new speculator resets the state."""

    class State(models.TextChoices):
        LEARNING = "learning"
        WATCHING = "watching"
        DROPPED = "dropped"

    deployment = models.OneToOneField(
        Deployment, on_delete=models.CASCADE, primary_key=True, related_name="acceptance_watch"
    )
    organization = models.ForeignKey(Organization, on_delete=models.CASCADE, related_name="+")
    speculator_id = models.CharField(max_length=40)
    state = models.CharField(max_length=16, choices=State.choices, default=State.LEARNING)
    until = models.DateTimeField(help_text="The samples before this time have been read.")
    pending_drafts = models.FloatField(default=0.0, help_text="Of minutes that do not make up a bin yet.")
    pending_accepted = models.FloatField(default=0.0)
    num_bins = models.PositiveIntegerField(default=0, help_text="Number of bins of the reference.")
    num_drafts = models.FloatField(default=0.0, help_text="Number of drafts in the bins of the reference.")
    mean = models.FloatField(default=0.0, help_text="The reference.")
    squares = models.FloatField(default=0.0, help_text="Weighted sum of squared deviations from the reference.")
    statistic = models.FloatField(default=0.0)
    current = models.FloatField(null=True, blank=True)
    rising_since = models.DateTimeField(
        null=True, blank=True, help_text="When the statistic was 0 last: the estimated begin of a drop."
    )
    dropped_at = models.DateTimeField(null=True, blank=True, help_text="When the latest drop was detected.")
    drop_began_at = models.DateTimeField(null=True, blank=True, help_text="The estimated begin of the latest drop.")

    def __str__(self) -> str:
        return f"{self.deployment_id} {self.state}"
