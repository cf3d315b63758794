"""The usage ledger. Its lines are append-only: a database trigger refuses to change or delete them."""

from django.db import models

from control.tenants.accounts.models import Organization


class Subject(models.TextChoices):
    """What was used. The unit is a token, or a millisecond of one device."""

    ENDPOINT_INPUT_TOKENS = "endpoint_input_tokens"
    ENDPOINT_OUTPUT_TOKENS = "endpoint_output_tokens"
    BATCH_INPUT_TOKENS = "batch_input_tokens"
    BATCH_OUTPUT_TOKENS = "batch_output_tokens"
    ENDPOINT_TIME = "endpoint_time"
    BATCH_TIME = "batch_time"
    TRAINING_TIME = "training_time"
    EVALUATION_TIME = "evaluation_time"


class CreditReason(models.TextChoices):
    """Why device time is given back."""

    GATE_REJECTED = "gate_rejected"  # training whose speculator did not pass the gate of its pipeline
    ATTEMPT_FAILED = "attempt_failed"  # an attempt that failed because of the service


class LedgerLine(models.Model):
    """Usage between `started_at` and `ended_at`. Ids are plain text, because a line outlives the objects it names."""

    # No constraint: a line outlives the organization.
    organization = models.ForeignKey(Organization, on_delete=models.DO_NOTHING, db_constraint=False, related_name="+")
    project_id = models.CharField(max_length=40, blank=True)
    api_key_id = models.CharField(max_length=8, blank=True)
    subject = models.CharField(max_length=32, choices=Subject.choices)
    object_id = models.CharField(max_length=40, help_text="The deployment, batch or job that used it.")
    sequence = models.CharField(
        max_length=64,
        help_text="The part of the object's usage that the line records: the shard of a batch, the attempt (fence) of "
        "a job, the request to an endpoint, or the start of a period of an endpoint; of a credit, `credit:` and this.",
    )
    base_model_id = models.CharField(
        max_length=40, blank=True, help_text="Of tokens: the base model that sets the price."
    )
    device_kind = models.CharField(max_length=24, blank=True, help_text="Of device time: cuda or cpu.")
    count = models.BigIntegerField(help_text="Tokens, or milliseconds of one device.")
    started_at = models.DateTimeField()
    ended_at = models.DateTimeField()
    price_nanousd = models.BigIntegerField(
        null=True,
        blank=True,
        help_text="Price of one token or of one hour of a device when the line was written. Null: it had no price.",
    )
    price_percent = models.PositiveSmallIntegerField(default=100, help_text="The part of the price that is charged.")
    cost_nanousd = models.BigIntegerField(default=0, help_text="Negative: a credit.")
    credit_reason = models.CharField(
        max_length=24,
        null=True,  # a default value would rewrite the table
        blank=True,
        choices=CreditReason.choices,
        help_text="Why the line gives back the cost of the line with the sequence after `credit:`. Null: it is usage.",
    )
    credited_count = models.BigIntegerField(
        null=True,
        blank=True,
        help_text="Of a credit: the milliseconds whose cost it gives back. Its `count` is 0, because nothing was used.",
    )
    billed_month = models.DateField(
        null=True,
        blank=True,
        help_text="First day of the month on whose invoice the line is, if it was written after the month of "
        "`ended_at` was closed. Null: it is on the invoice of the month of `ended_at`.",
    )

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["subject", "object_id", "sequence"], name="ledger_line_once"),
            models.CheckConstraint(condition=models.Q(count__gte=0), name="ledger_count_not_negative"),
        ]
        indexes = [
            models.Index(fields=["organization", "ended_at"], name="ledger_period"),
            models.Index(
                fields=["organization", "ended_at"],
                name="ledger_device_costs",
                condition=models.Q(cost_nanousd__gt=0) & ~models.Q(device_kind=""),
            ),
            models.Index(
                fields=["organization", "ended_at"],
                name="ledger_credits",
                condition=models.Q(credit_reason__isnull=False),
            ),
            models.Index(
                fields=["organization", "billed_month"],
                name="ledger_billed_later",
                condition=models.Q(billed_month__isnull=False),
            ),
        ]

    def __str__(self) -> str:
        return f"{self.subject} {self.object_id} {self.sequence}"
