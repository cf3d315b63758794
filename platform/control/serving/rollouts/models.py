"""A rollout of a new speculator to a deployment. A canary with this speculator first serves a share of the requests, or
copies of requests, and the gateways measure the canary and the deployment."""

from django.db import models

from control.core.ids import rollout_id
from control.models.catalog.models import Speculator
from control.serving.deployments.models import Deployment
from control.tenants.accounts.models import Organization

_ACTIVE = ("starting", "canary", "promoting", "watching")


class Rollout(models.Model):
    class Status(models.TextChoices):
        STARTING = "starting"
        CANARY = "canary"
        PROMOTING = "promoting"
        WATCHING = "watching"
        PROMOTED = "promoted"
        ROLLED_BACK = "rolled_back"

    class Mode(models.TextChoices):
        CANARY = "canary"
        SHADOW = "shadow"

    class OnUndecided(models.TextChoices):
        ROLL_BACK = "roll_back"
        PROMOTE = "promote"

    id = models.CharField(primary_key=True, max_length=40, default=rollout_id, editable=False)
    organization = models.ForeignKey(Organization, on_delete=models.CASCADE, related_name="rollouts")
    deployment = models.ForeignKey(Deployment, on_delete=models.CASCADE, related_name="rollouts")
    canary = models.ForeignKey(Deployment, on_delete=models.PROTECT, related_name="+")
    speculator = models.ForeignKey(Speculator, on_delete=models.PROTECT, related_name="+")
    previous = models.ForeignKey(Speculator, on_delete=models.PROTECT, related_name="+", null=True, blank=True)
    mode = models.CharField(
        max_length=16,
        choices=Mode.choices,
        default=Mode.CANARY,
        db_default=Mode.CANARY,
        help_text="Whether the canary answers requests, or copies of requests whose answers are compared.",
    )
    share_percent = models.PositiveSmallIntegerField(
        help_text="Share of the requests that the canary gets during the trial."
    )
    min_requests = models.PositiveIntegerField(
        help_text="Number of requests that the canary must answer before the decision."
    )
    max_acceptance_drop = models.FloatField(
        help_text="Largest accepted drop of the acceptance length, relative to the previous speculator."
    )
    max_error_rate = models.FloatField()
    alpha = models.FloatField(default=0.05, db_default=0.05, help_text="Probability of a false decision.")
    first_token_seconds = models.FloatField(
        null=True, blank=True, help_text="Later first tokens are slow; null: not compared."
    )
    inter_token_seconds = models.FloatField(
        null=True, blank=True, help_text="Longer mean times between tokens are slow; null: not compared."
    )
    max_slow_increase = models.FloatField(
        default=0.02, db_default=0.02, help_text="By how much the share of slow requests may increase."
    )
    max_seconds = models.PositiveIntegerField(help_text="Longest time until a decision.")
    max_requests = models.PositiveIntegerField(
        default=100_000, db_default=100_000, help_text="Most requests of the canary until a decision."
    )
    on_undecided = models.CharField(
        max_length=16,
        choices=OnUndecided.choices,
        default=OnUndecided.ROLL_BACK,
        db_default=OnUndecided.ROLL_BACK,
        help_text="What happens if the evidence has decided nothing at one of these limits.",
    )
    watch_seconds = models.PositiveIntegerField(
        default=0, db_default=0, help_text="How long the promoted speculator is compared with the previous one."
    )
    status = models.CharField(max_length=16, choices=Status.choices, default=Status.STARTING)
    failed_before = models.PositiveIntegerField(
        default=0, help_text="Number of failed requests of the deployment when the trial began."
    )
    reason = models.JSONField(null=True, blank=True, help_text="Reason for the decision: {code, message}")
    figures = models.JSONField(
        default=dict, blank=True, help_text="Figures of canary and stable at the time of the decision."
    )
    trial = models.JSONField(
        null=True, blank=True, help_text="Rules, gates, evidence and verdict of the trial (`verdicts`)."
    )
    watch = models.JSONField(null=True, blank=True, help_text="The same of the time after the promotion.")
    created_at = models.DateTimeField(auto_now_add=True)
    started_at = models.DateTimeField(null=True, blank=True, help_text="When the canary became ready for requests.")
    watched_at = models.DateTimeField(null=True, blank=True, help_text="When the time after the promotion began.")
    finished_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["deployment"], condition=models.Q(status__in=_ACTIVE), name="rollout_one_active"
            ),
        ]
        indexes = [
            models.Index(fields=["organization", "-id"], name="rollout_page"),
            models.Index(fields=["status"], name="rollout_status"),
        ]

    def __str__(self) -> str:
        return self.id


class RolloutEvidence(models.Model):
    """Sums over the requests that the gateways have measured for one side of a rollout's comparison.

    A gateway locks the row while it adds to the sums, so that several gateways do not overwrite each other's additions.
    """

    class Side(models.TextChoices):
        CANDIDATE = "candidate"  # the canary
        STABLE = "stable"  # the deployment, during the trial
        PROMOTED = "promoted"  # the deployment, after the promotion

    rollout = models.ForeignKey(Rollout, on_delete=models.CASCADE, related_name="evidence")
    organization = models.ForeignKey(Organization, on_delete=models.CASCADE, related_name="+")
    side = models.CharField(max_length=16, choices=Side.choices)
    num_requests = models.PositiveBigIntegerField(default=0, help_text="Complete answers.")
    num_failed = models.PositiveBigIntegerField(default=0)
    num_measured = models.PositiveBigIntegerField(default=0, help_text="Answers with statistics of speculation.")
    passes_total = models.FloatField(default=0.0, help_text="Sum of the forward passes per generated token.")
    passes_variance = models.FloatField(default=0.0, help_text="See `sequential.Sums`.")
    num_first = models.PositiveBigIntegerField(default=0, help_text="Requests whose first token was timed.")
    num_slow_first = models.PositiveBigIntegerField(default=0)
    num_inter = models.PositiveBigIntegerField(default=0, help_text="Requests whose time between tokens was measured.")
    num_slow_inter = models.PositiveBigIntegerField(default=0)
    num_equal = models.PositiveBigIntegerField(default=0)
    num_different = models.PositiveBigIntegerField(default=0)
    num_not_comparable = models.PositiveBigIntegerField(default=0)
    num_dropped = models.PositiveBigIntegerField(default=0)
    different_request = models.CharField(
        max_length=200, blank=True, default="", help_text="Id of the first request whose answers differed."
    )

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["rollout", "side"], name="rollout_evidence_per_side"),
        ]

    def __str__(self) -> str:
        return f"{self.rollout_id} {self.side}"
