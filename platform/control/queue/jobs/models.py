"""Tables of the job queue. A job's state is in its row; a Celery message only tells workers that some job is due.

Every claim increases `fence` (a fencing token), and every later write of the attempt filters by it: a write with an old
fence changes nothing. `lease_until` is always compared with the database's clock.
"""

from django.db import models

from control.core.ids import job_id
from control.tenants.accounts.models import Organization
from control.tenants.accounts.projects import ProjectObject


class Job(ProjectObject):
    class Kind(models.TextChoices):
        BATCH = "batch"
        TRAINING = "training"
        EVALUATION = "evaluation"
        MODEL_CHECK = "model_check"

    class Status(models.TextChoices):
        QUEUED = "queued"
        RUNNING = "running"
        PAUSED = "paused"
        SUCCEEDED = "succeeded"
        FAILED = "failed"
        CANCELLED = "cancelled"

    id = models.CharField(primary_key=True, max_length=40, default=job_id, editable=False)
    organization = models.ForeignKey(Organization, on_delete=models.CASCADE, related_name="jobs")
    kind = models.CharField(max_length=16, choices=Kind.choices)
    status = models.CharField(max_length=16, choices=Status.choices, default=Status.QUEUED)
    params = models.JSONField(
        default=dict, help_text="Input of the job: storage keys and ids, but no paths, because any machine may run it."
    )
    result = models.JSONField(default=dict, blank=True)
    error = models.JSONField(null=True, blank=True, help_text="{class, code, message, retryable}")

    memory_needed = models.JSONField(
        null=True,
        blank=True,
        help_text="Bytes of memory that a device must have, by kind: {cpu, cuda}. 0: unknown. A kind that is missing "
        "cannot run the job. Null: nothing is known, so the job fits on every device.",
    )
    hardware = models.CharField(
        max_length=80,
        blank=True,
        default="",
        db_default="",
        help_text="Kind or model of the device on which the job must run; empty: any device that fits.",
    )
    priority = models.SmallIntegerField(
        default=0, db_default=0, help_text="Jobs of the same organization with a higher priority are claimed first."
    )

    min_protocol = models.PositiveSmallIntegerField(
        default=0, db_default=0, help_text="The oldest `protocol.PROTOCOL` of a worker that understands the job."
    )

    fence = models.BigIntegerField(default=0)
    attempt = models.PositiveIntegerField(default=0)
    stalled_attempts = models.PositiveIntegerField(
        default=0, help_text="Number of consecutive attempts without progress, except lost ones."
    )
    lost_attempts = models.PositiveIntegerField(
        default=0,
        db_default=0,
        help_text="Number of attempts without progress whose machine was lost or whose process was killed.",
    )
    failures = models.JSONField(default=dict, blank=True, help_text="Number of failed attempts by failure class.")
    claimed_at = models.DateTimeField(null=True, blank=True)
    lease_until = models.DateTimeField(null=True, blank=True)
    worker = models.CharField(max_length=120, blank=True)
    not_before = models.DateTimeField(null=True, blank=True)
    cancel_requested_at = models.DateTimeField(null=True, blank=True)
    paused = models.JSONField(null=True, blank=True, help_text="Why the job is paused: {code, message, cap_id}")

    progress_done = models.BigIntegerField(default=0)
    progress_total = models.BigIntegerField(default=0)
    progress_unit = models.CharField(max_length=24, blank=True)
    progress_at = models.DateTimeField(null=True, blank=True)
    metrics = models.JSONField(default=dict, blank=True, help_text="The latest metrics event.")
    checkpoint_key = models.CharField(
        max_length=400, blank=True, help_text="Prefix of the storage keys of the last committed checkpoint."
    )

    has_stored_work = models.BooleanField(
        default=True,
        db_default=True,
        help_text="Storage may contain objects of attempts, such as checkpoints; they are deleted after the job ends.",
    )

    created_at = models.DateTimeField(auto_now_add=True)
    started_at = models.DateTimeField(null=True, blank=True)
    finished_at = models.DateTimeField(null=True, blank=True)

    queue_position: int | None = None  # set by `positions`
    blocked: dict[str, str] | None = None  # set by `queue.devices.blocked`

    class Meta:
        indexes = [
            models.Index(fields=["status", "organization", "-priority", "id"], name="job_turn"),
            models.Index(fields=["status", "cancel_requested_at"], name="job_to_cancel"),
            models.Index(fields=["organization", "-id"], name="job_page"),
            models.Index(
                fields=["finished_at"],
                name="job_untidy",
                condition=models.Q(has_stored_work=True, finished_at__isnull=False),
            ),
            models.Index(
                fields=["not_before"],
                name="job_held",
                condition=models.Q(status="queued", min_protocol__gt=0),
            ),
        ]

    def __str__(self) -> str:
        return f"{self.kind} {self.id}"


class JobShard(models.Model):
    """A range of a job's rows. `storage_key` names the committed result; it is set only once."""

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="shards")
    shard_no = models.PositiveIntegerField()
    row_from = models.PositiveIntegerField()
    row_to = models.PositiveIntegerField(help_text="The first row after the shard.")
    storage_key = models.CharField(max_length=400, blank=True)
    fence = models.BigIntegerField(null=True, blank=True)
    completed = models.PositiveIntegerField(default=0)
    failed = models.PositiveIntegerField(default=0)
    usage = models.JSONField(default=dict, blank=True)
    alone = models.BooleanField(
        default=False, help_text="The shard is run alone, because it may have crashed its worker."
    )
    crashes = models.PositiveSmallIntegerField(
        default=0, help_text="Number of child processes that died while they ran this shard alone."
    )

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["job", "shard_no"], name="job_shard_once"),
            models.CheckConstraint(condition=models.Q(row_to__gt=models.F("row_from")), name="job_shard_not_empty"),
        ]
        ordering = ["job", "shard_no"]

    def __str__(self) -> str:
        return f"{self.job_id} shard {self.shard_no}"


class JobEvent(models.Model):
    """The append-only history of a job, for API, console, webhooks and usage."""

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="events")
    seq = models.PositiveIntegerField()
    type = models.CharField(max_length=40)
    data = models.JSONField(default=dict)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["job", "seq"], name="job_event_seq_once")]
        ordering = ["job", "seq"]

    def __str__(self) -> str:
        return f"{self.job_id} #{self.seq} {self.type}"


class Share(models.Model):
    """The worker time that an organization has used; `fair` compares it between organizations."""

    organization = models.OneToOneField(Organization, on_delete=models.CASCADE, primary_key=True, related_name="+")
    used_seconds = models.FloatField(default=0.0)

    def __str__(self) -> str:
        return f"{self.organization_id}: {self.used_seconds:.0f} s"


class Worker(models.Model):
    id = models.CharField(primary_key=True, max_length=120)
    role = models.CharField(max_length=24, help_text="What the worker supervises: jobs or deployments.")
    started_at = models.DateTimeField()
    heartbeat_at = models.DateTimeField()
    protocol = models.PositiveSmallIntegerField(
        default=0, db_default=0, help_text="The worker claims jobs up to this `min_protocol`. 0: it claims all jobs."
    )

    def __str__(self) -> str:
        return self.id


class Chore(models.Model):
    """A recurring task of the installation, such as the deletion of old rows. One worker runs it each time."""

    name = models.CharField(primary_key=True, max_length=40)
    due_at = models.DateTimeField(help_text="When a worker runs the chore next, by the database's clock.")

    def __str__(self) -> str:
        return self.name
