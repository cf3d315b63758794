"""A dedicated endpoint, and the replicas that answer its requests.

The row of a deployment holds the desired state, and an observed state that is derived from its replicas. The rows of
the replicas hold what the supervisors observed of the processes.
"""

from django.db import models

from control.core.ids import deployment_id
from control.core.settings.config import LOOPBACK
from control.models.catalog.models import BaseModel, Speculator
from control.serving.deployments.engine_tls import EngineAddress
from control.tenants.accounts.models import Organization
from control.tenants.accounts.projects import ProjectObject


class Deployment(ProjectObject):
    class Desired(models.TextChoices):
        RUNNING = "running"
        STOPPED = "stopped"

    class State(models.TextChoices):
        PROVISIONING = "provisioning"
        READY = "ready"
        SLEEPING = "sleeping"
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
    hardware = models.CharField(
        max_length=80,
        blank=True,
        default="",
        db_default="",
        help_text="Kind or model of the replicas' devices; empty: any.",
    )
    desired_state = models.CharField(max_length=16, choices=Desired.choices, default=Desired.RUNNING)
    state = models.CharField(max_length=16, choices=State.choices, default=State.PROVISIONING)
    generation = models.PositiveIntegerField(default=1, help_text="Incremented by every change of the desired state.")
    observed_generation = models.PositiveIntegerField(default=0)
    num_replicas = models.PositiveSmallIntegerField(
        default=1, db_default=1, help_text="How many engine processes answer the requests."
    )
    scaling = models.JSONField(null=True, blank=True, help_text="The request's options of scaling; null: defaults.")
    acceptance_alarm = models.JSONField(
        null=True, blank=True, help_text="The request's options of the alarm; null: defaults."
    )
    error = models.JSONField(null=True, blank=True)
    healthy_at = models.DateTimeField(null=True, blank=True)
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
        """The model name that the engine serves; a canary answers under the name of its deployment."""
        return self.name if self.canary_of is None else self.canary_of.name


class Replica(models.Model):
    """A place for one engine process of a deployment. The process may be missing: not started yet, crashed or stopped.

    Replicas with a number below the deployment's `num_replicas` should have a process. A supervisor works on a replica
    only while it holds the replica's lease, and names the lease's fence in every write (`leases`).
    """

    class State(models.TextChoices):
        PROVISIONING = "provisioning"
        READY = "ready"
        SLEEPING = "sleeping"
        DEGRADED = "degraded"
        DRAINING = "draining"
        STOPPED = "stopped"
        FAILED = "failed"

    deployment = models.ForeignKey(Deployment, on_delete=models.CASCADE, related_name="replicas")
    number = models.PositiveSmallIntegerField(help_text="From 0.")
    state = models.CharField(max_length=16, choices=State.choices, default=State.PROVISIONING)
    generation = models.PositiveIntegerField(
        default=0, help_text="Generation of the deployment for which the latest process was started; 0: none yet."
    )
    launcher = models.CharField(max_length=16, default="process")
    node = models.CharField(max_length=120, blank=True, help_text="Machine of the process; empty: not recorded.")
    device = models.CharField(max_length=64, blank=True, help_text="CUDA device of the process; empty: the CPU.")
    host = models.CharField(max_length=255, blank=True, help_text="Where gateways find the process.")
    port = models.PositiveIntegerField(null=True, blank=True)
    token = models.CharField(
        max_length=64, blank=True, help_text="Token with which the gateway authenticates to the engine."
    )
    operator_token = models.CharField(
        max_length=64, blank=True, db_default="", help_text="Token with which sleep and wake are requested."
    )
    certificate = models.TextField(
        blank=True, db_default="", help_text="The engine's own TLS certificate, in PEM; empty: it does not use TLS."
    )
    pid = models.PositiveIntegerField(null=True, blank=True)
    process_started = models.CharField(
        max_length=40, blank=True, help_text="Start time of the process `pid`, because a pid can be reused."
    )
    device_kind = models.CharField(
        max_length=24,
        blank=True,
        default="",
        db_default="",
        help_text="Kind of the leased device; empty: no device was leased.",
    )
    hour_nanousd = models.PositiveBigIntegerField(
        null=True, blank=True, help_text="Price of one hour of the leased device; null: the price of its kind."
    )
    blocked = models.JSONField(
        null=True, blank=True, help_text="Why the replica waits for a device: {code, message}. Null: it does not wait."
    )
    crashes = models.JSONField(default=list, blank=True, help_text="Unix times of the crashes of the last 10 minutes.")
    not_before = models.DateTimeField(null=True, blank=True, help_text="No process is started before.")
    error = models.JSONField(null=True, blank=True, help_text="The latest crash; null once a process was ready.")
    healthy_at = models.DateTimeField(null=True, blank=True)
    num_open = models.PositiveIntegerField(
        default=0, db_default=0, help_text="Requests that run or wait, as the supervisor saw it last."
    )
    used_at = models.DateTimeField(
        null=True, blank=True, help_text="When the process had requests last, or was started or woken; null: unknown."
    )
    metered_until = models.DateTimeField(
        null=True, blank=True, help_text="Until when the ledger contains the device time of the process."
    )
    supervisor = models.CharField(max_length=160, blank=True, help_text="Holds the lease, if it has not expired.")
    lease_until = models.DateTimeField(null=True, blank=True)
    fence = models.PositiveBigIntegerField(default=0, help_text="Incremented whenever another supervisor takes over.")
    created_at = models.DateTimeField(auto_now_add=True)
    updated_at = models.DateTimeField(auto_now=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["deployment", "number"], name="replica_number_per_deployment"),
        ]

    def __str__(self) -> str:
        return f"{self.deployment_id}-{self.number}"

    @property
    def has_process(self) -> bool:
        """Whether a process has been started and its end has not been recorded."""
        return self.pid is not None

    def process_name(self, generation: int) -> str:
        """Returns the name of the replica's engine that is started for this generation of the deployment."""
        return f"{self}-{generation}"

    @property
    def supervised_host(self) -> str:
        """Where the replica's supervisor reaches the process. `host` may be a name that only gateways use."""
        return LOOPBACK if self.launcher == "process" else self.host

    @property
    def supervised_address(self) -> EngineAddress:
        assert self.port is not None
        return EngineAddress(self.supervised_host, self.port, self.certificate)


AVAILABLE = (Replica.State.READY, Replica.State.SLEEPING)  # a request wakes a sleeping replica
UP = (*AVAILABLE, Replica.State.DEGRADED)  # replicas in these states may answer requests


class Node(models.Model):
    """A machine on which supervisors run. They renew the machine's lease. If the lease expires, the processes on the
    machine count as lost."""

    name = models.CharField(primary_key=True, max_length=120)
    lease_until = models.DateTimeField()

    def __str__(self) -> str:
        return self.name


class DeploymentSample(models.Model):
    """The counters of one engine process at one time, counted since the process started (`measuring`)."""

    deployment = models.ForeignKey(Deployment, on_delete=models.CASCADE, related_name="samples")
    at = models.DateTimeField(auto_now_add=True)
    process = models.CharField(max_length=64)
    speculator_id = models.CharField(max_length=40, null=True)
    counters = models.JSONField()

    class Meta:
        indexes = [models.Index(fields=["deployment", "at"], name="deployment_sample_at")]

    def __str__(self) -> str:
        return f"{self.deployment_id} {self.at:%Y-%m-%d %H:%M:%S}"
