"""The settings of a deployment's loop, and its rounds, each of which trains and tries one speculator."""

from django.db import models

from control.core.ids import loop_id, loop_round_id
from control.models.catalog.models import Speculator
from control.serving.deployments.models import Deployment
from control.serving.rollouts.models import Rollout
from control.tenants.accounts.models import Organization
from control.tenants.accounts.projects import ProjectObject
from control.workflows.pipelines.models import Pipeline

_ACTIVE = ("capturing", "distilling", "training", "evaluating", "gating", "rolling_out")


class Loop(ProjectObject):
    id = models.CharField(primary_key=True, max_length=40, default=loop_id, editable=False)
    organization = models.ForeignKey(Organization, on_delete=models.CASCADE, related_name="loops")
    deployment = models.OneToOneField(Deployment, on_delete=models.CASCADE, related_name="loop")
    enabled = models.BooleanField(default=True, help_text="The switch that stops the loop and its running round.")
    triggers = models.JSONField(default=dict, help_text="acceptance_drop, every_hours, new_requests")
    limits = models.JSONField(default=dict, help_text="min_seconds_between_rounds, max_rows")
    budget_nanousd = models.BigIntegerField(
        null=True, blank=True, help_text="The most that the rounds that begin in one month may cost; null: no limit."
    )
    recipe = models.JSONField(default=dict, help_text="How a round trains and evaluates.")
    gate = models.JSONField(default=dict, help_text="What the evaluation must show before the rollout.")
    rollout = models.JSONField(default=dict, help_text="The terms of the rollout.")
    blocked = models.JSONField(
        null=True, blank=True, help_text="Why no round began although a trigger asked for one: {code, message}."
    )
    created_at = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return self.id


class LoopRound(ProjectObject):
    class Status(models.TextChoices):
        CAPTURING = "capturing"  # waits for enough captured requests
        DISTILLING = "distilling"
        TRAINING = "training"
        EVALUATING = "evaluating"
        GATING = "gating"
        ROLLING_OUT = "rolling_out"
        PROMOTED = "promoted"
        REJECTED = "rejected"  # the evaluation does not show enough gain
        ROLLED_BACK = "rolled_back"
        FAILED = "failed"
        STOPPED = "stopped"

    class Trigger(models.TextChoices):
        ACCEPTANCE_DROP = "acceptance_drop"
        SCHEDULE = "schedule"
        NEW_REQUESTS = "new_requests"

    id = models.CharField(primary_key=True, max_length=40, default=loop_round_id, editable=False)
    organization = models.ForeignKey(Organization, on_delete=models.CASCADE, related_name="loop_rounds")
    # the rounds of a loop that was deleted stay with the deployment
    deployment = models.ForeignKey(Deployment, on_delete=models.CASCADE, related_name="loop_rounds")
    status = models.CharField(max_length=16, choices=Status.choices, default=Status.CAPTURING)
    trigger = models.CharField(max_length=20, choices=Trigger.choices)
    alarm_at = models.DateTimeField(null=True, blank=True, help_text="`dropped_at` of the drop that began the round.")
    data_since = models.DateTimeField(
        null=True, blank=True, help_text="Only requests captured since then count as enough; null: all that are kept."
    )
    settings = models.JSONField(
        default=dict, help_text="recipe, gate, rollout, max_rows and caller of the loop when the round began."
    )
    previous = models.ForeignKey(Speculator, on_delete=models.PROTECT, related_name="+", null=True, blank=True)
    pipeline = models.OneToOneField(
        Pipeline, on_delete=models.PROTECT, related_name="loop_round", null=True, blank=True
    )
    rollout = models.OneToOneField(Rollout, on_delete=models.PROTECT, related_name="loop_round", null=True, blank=True)
    figures = models.JSONField(
        null=True, blank=True, help_text="concurrency, old, new: the figures on which the gate decided."
    )
    reason = models.JSONField(null=True, blank=True, help_text="Why the round ended: {code, message}.")
    timeline = models.JSONField(default=list, help_text="[{status, at}]: each status and when it began, in Unix time.")
    created_at = models.DateTimeField(auto_now_add=True)
    changed_at = models.DateTimeField(auto_now_add=True, help_text="When the status changed last.")
    finished_at = models.DateTimeField(null=True, blank=True)

    cost_nanousd: int  # annotated by `with_cost`

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["deployment"], condition=models.Q(status__in=_ACTIVE), name="loop_round_one_at_a_time"
            ),
            models.UniqueConstraint(
                fields=["deployment", "alarm_at"],
                condition=models.Q(alarm_at__isnull=False),
                name="loop_round_once_per_alarm",
            ),
        ]
        indexes = [models.Index(fields=["status"], name="loop_round_status")]

    def __str__(self) -> str:
        return self.id
