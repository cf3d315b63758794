"""A dedicated endpoint: the row holds the desired state and the state that the supervisor observed."""

from django.db import models

from control.core.ids import deployment_id
from control.models.catalog.models import BaseModel, Speculator
from control.tenants.accounts.models import Organization
from control.tenants.accounts.projects import ProjectObject


class Deployment(ProjectObject):
    class Desired(models.TextChoices):
        RUNNING = "running"
        STOPPED = "stopped"

    class State(models.TextChoices):
        PROVISIONING = "provisioning"
        READY = "ready"
        DEGRADED = "degraded"
        STOPPING = "stopping"
        STOPPED = "stopped"
        FAILED = "failed"

    id = models.CharField(primary_key=True, max_length=40, default=deployment_id, editable=False)
    organization = models.ForeignKey(Organization, on_delete=models.CASCADE, related_name="deployments")
    name = models.CharField(max_length=64, help_text="Requests select the deployment by setting `model` to this name.")
    base_model = models.ForeignKey(BaseModel, on_delete=models.PROTECT, related_name="deployments")
    speculator = models.ForeignKey(
        Speculator, on_delete=models.PROTECT, related_name="deployments", null=True, blank=True
    )
    adapters = models.ManyToManyField("adapters.Adapter", related_name="deployments", blank=True)
    remember_answers = models.BooleanField(
        default=True,
        db_default=True,
        help_text="Whether the engine drafts copies of a project's past answers, which it keeps in memory.",
    )
    engine = models.JSONField(null=True, blank=True, help_text="The request's options of the engine; null: defaults.")
    desired_state = models.CharField(max_length=16, choices=Desired.choices, default=Desired.RUNNING)
    state = models.CharField(max_length=16, choices=State.choices, default=State.PROVISIONING)
    generation = models.PositiveIntegerField(default=1, help_text="Incremented by every change of the desired state.")
    observed_generation = models.PositiveIntegerField(default=0)
    pid = models.PositiveIntegerField(null=True, blank=True)
    process_started = models.CharField(
        max_length=40, blank=True, help_text="Start time of the process `pid`, because a pid can be reused."
    )
    port = models.PositiveIntegerField(null=True, blank=True)
    token = models.CharField(
        max_length=64, blank=True, help_text="Token with which the gateway authenticates to the engine."
    )
    device = models.CharField(
        max_length=64, blank=True, default="", db_default="", help_text="CUDA device of the process; empty: the CPU."
    )
    crashes = models.JSONField(default=list, blank=True, help_text="Unix times of the crashes of the last 10 minutes.")
    not_before = models.DateTimeField(null=True, blank=True)
    error = models.JSONField(null=True, blank=True)
    healthy_at = models.DateTimeField(null=True, blank=True)
    metered_until = models.DateTimeField(
        null=True, blank=True, help_text="Until when the ledger contains the device time of the process."
    )
    num_failed = models.PositiveIntegerField(
        default=0, db_default=0, help_text="Number of requests that failed because the engine did not answer."
    )
    canary_of = models.ForeignKey("self", on_delete=models.CASCADE, related_name="canaries", null=True, blank=True)
    canary_percent = models.PositiveSmallIntegerField(
        default=0, db_default=0, help_text="Share of the requests to `canary_of` that this deployment answers."
    )
    created_at = models.DateTimeField(auto_now_add=True)
    deleted_at = models.DateTimeField(null=True, blank=True)  # the row stays for its process and its pipelines

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["organization", "name"],
                condition=models.Q(deleted_at=None),
                name="deployment_name_per_organization",
            ),
        ]

    def __str__(self) -> str:
        return self.name

    @property
    def served_name(self) -> str:
        """Model name of the engine; a canary answers under the name of the deployment that it belongs to."""
        return self.name if self.canary_of is None else self.canary_of.name


class DeploymentSample(models.Model):
    """Counters of an endpoint's process since its start (`measuring`)."""

    deployment = models.ForeignKey(Deployment, on_delete=models.CASCADE, related_name="samples")
    at = models.DateTimeField(auto_now_add=True)
    process = models.CharField(max_length=64)
    speculator_id = models.CharField(max_length=40, null=True)
    counters = models.JSONField()

    class Meta:
        indexes = [models.Index(fields=["deployment", "at"], name="deployment_sample_at")]

    def __str__(self) -> str:
        return f"{self.deployment_id} {self.at:%Y-%m-%d %H:%M:%S}"
