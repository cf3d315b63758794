"""Tables of devices and of the leases on them.

A worker registers the devices of its machine and renews their rows with its heartbeat. A supervisor of endpoints does
the same for the devices whose memory is stated. All times are by the database's clock.
"""

from django.db import models

from control.queue.jobs.models import Job
from control.tenants.accounts.models import Organization


class Device(models.Model):
    """A device of a machine. Its row is renewed while a worker that can use the device runs."""

    machine = models.CharField(max_length=80, help_text="The node name of the machine.")
    kind = models.CharField(max_length=24, help_text="cuda or cpu.")
    index = models.PositiveSmallIntegerField(help_text="Number of the device among those of its kind on the machine.")
    model = models.CharField(max_length=80, blank=True, help_text="Name of the hardware. Empty: unknown.")
    memory_bytes = models.PositiveBigIntegerField(
        null=True,
        blank=True,
        help_text="Null: the operators have not stated it. Then any job fits, and several jobs may hold the device.",
    )
    hour_nanousd = models.PositiveBigIntegerField(
        null=True, blank=True, help_text="Price of one hour. Null: the price of the kind of device applies."
    )
    renewed_at = models.DateTimeField()
    lease_until = models.DateTimeField(help_text="Until then, a worker can run jobs on the device.")
    endpoints_until = models.DateTimeField(
        null=True, blank=True, help_text="Until then, a supervisor can start engines of endpoints on the device."
    )

    class Meta:
        constraints = [models.UniqueConstraint(fields=["machine", "kind", "index"], name="device_once")]
        ordering = ["machine", "kind", "index"]

    def __str__(self) -> str:
        return f"{self.machine} {self.kind}:{self.index}"


class DeviceLease(models.Model):
    """A device that a job holds.

    A lease has no end of its own. It is valid while the job runs with this fence under a valid lease, so it is renewed,
    lost and passed on together with the lease of the job.
    """

    device = models.ForeignKey(Device, on_delete=models.CASCADE, related_name="leases")
    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="device_leases")
    fence = models.BigIntegerField(help_text="The fence of the claim with which the job took the device.")
    since = models.DateTimeField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["device", "job"], name="device_lease_once")]

    def __str__(self) -> str:
        return f"{self.job_id} holds {self.device_id}"


class EndpointLease(models.Model):
    """A device that the engine of an endpoint's replica holds.

    The lease is valid until a supervisor of the machine deletes it, after the engine has ended. It therefore outlives
    the supervisor together with the engine.
    """

    device = models.ForeignKey(Device, on_delete=models.CASCADE, related_name="endpoint_leases")
    organization = models.ForeignKey(Organization, on_delete=models.CASCADE, related_name="+")
    deployment_id = models.CharField(max_length=40)
    replica = models.CharField(max_length=64, help_text="Name of the replica: the deployment's id and a number.")
    fence = models.BigIntegerField(help_text="The fence of the supervisor's claim on the replica.")
    since = models.DateTimeField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["device", "replica"], name="endpoint_lease_once")]

    def __str__(self) -> str:
        return f"{self.replica} holds {self.device_id}"


class DeviceHold(models.Model):
    """A lease that has ended: from when to when a job or an endpoint held the device. Kept for about a day."""

    device = models.ForeignKey(Device, on_delete=models.CASCADE, related_name="holds")
    since = models.DateTimeField()
    until = models.DateTimeField()

    class Meta:
        indexes = [models.Index(fields=["device", "until"], name="device_hold_until")]

    def __str__(self) -> str:
        return f"{self.device_id} until {self.until}"
