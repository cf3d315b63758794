"""Usage counters by the minute, amounts spent by the month, the API keys that jobs are billed to, and prices."""

from django.db import models

from control.tenants.accounts.models import Organization


class UsageRecord(models.Model):
    """Usage of one model by one API key in one minute. Ids are plain text, so that usage outlives a deleted key."""

    organization = models.ForeignKey(Organization, on_delete=models.CASCADE, related_name="usage")
    minute = models.DateTimeField(help_text="The beginning of the minute.")
    model = models.CharField(max_length=120, help_text="The name in the request: of an endpoint or a base model.")
    base_model_id = models.CharField(
        max_length=40,
        blank=True,
        db_default="",
        help_text="The base model whose price applied last in this minute. Empty in records of earlier releases.",
    )
    project_id = models.CharField(max_length=40, blank=True)
    api_key_id = models.CharField(max_length=8, blank=True)
    is_batch = models.BooleanField()
    input_tokens = models.BigIntegerField(default=0)
    cached_tokens = models.BigIntegerField(
        default=0, help_text="Input tokens whose keys and values came from the prefix cache."
    )
    output_tokens = models.BigIntegerField(default=0)
    requests = models.BigIntegerField(default=0)
    input_nanousd = models.BigIntegerField(default=0)
    output_nanousd = models.BigIntegerField(default=0)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["organization", "minute", "model", "project_id", "api_key_id", "is_batch"],
                name="usage_once_a_minute",
            )
        ]

    def __str__(self) -> str:
        return f"{self.model} {self.minute:%Y-%m-%d %H:%M}"


class MonthlySpend(models.Model):
    """The cost of an organization's usage in one month (UTC), in total and for each project.

    The transaction that writes usage also increases these counters, so that a check of a spend cap reads one row
    instead of a month of usage records.
    """

    organization = models.ForeignKey(Organization, on_delete=models.CASCADE, related_name="+")
    project_id = models.CharField(max_length=40, blank=True, help_text="Empty: of the whole organization.")
    month = models.DateField(help_text="Its first day.")
    nanousd = models.BigIntegerField(default=0)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["organization", "project_id", "month"], name="spend_once_a_month")
        ]

    def __str__(self) -> str:
        return f"{self.organization_id} {self.project_id} {self.month:%Y-%m}".replace("  ", " ")


class Attribution(models.Model):
    """The API key that requested a job, pipeline or deployment and is charged for its usage. `job_id` is the id of the
    job, pipeline or deployment.

    The jobs and the deployment of a pipeline have the pipeline's key.
    """

    job_id = models.CharField(primary_key=True, max_length=40, editable=False)
    organization = models.ForeignKey(Organization, on_delete=models.CASCADE, related_name="+")
    project_id = models.CharField(max_length=40, blank=True)
    api_key_id = models.CharField(max_length=8)

    def __str__(self) -> str:
        return f"{self.job_id} by {self.api_key_id}"


class Price(models.Model):
    """The price of a base model for all organizations.

    Usage is priced when it is counted, so a new price does not change past usage.
    """

    base_model_id = models.CharField(
        max_length=40,
        unique=True,
        null=True,
        blank=True,
        help_text="Empty for the price of all models that have no price of their own. Null: the price came from an "
        "earlier release under a name that no shared base model has, and applies to no model.",
    )
    model = models.CharField(
        max_length=120, blank=True, help_text="Name of the base model when the price was set, for operators."
    )
    input_nanousd = models.PositiveBigIntegerField(
        help_text="Price of one input token. 100 means 0.10 USD per million tokens."
    )
    output_nanousd = models.PositiveBigIntegerField(help_text="Price of one output token.")
    batch_percent = models.PositiveSmallIntegerField(
        default=50, help_text="Price of a token in a batch, in percent of this price."
    )

    def __str__(self) -> str:
        return self.model or "all other models"


class DevicePrice(models.Model):
    """The price of device time, for all organizations. Device time is priced when it is recorded."""

    device_kind = models.CharField(max_length=24, unique=True)
    hour_nanousd = models.PositiveBigIntegerField(help_text="Price of one hour of one device.")

    def __str__(self) -> str:
        return self.device_kind
