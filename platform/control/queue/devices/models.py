"""Tables of devices and of the leases on them.

A worker registers the devices of its machine and renews their rows with its heartbeat. All times are by the database's
clock.
"""

from django.db import models

from control.queue.jobs.models import Job


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
    lease_until = models.DateTimeField(help_text="Until then, the device counts as present.")

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
