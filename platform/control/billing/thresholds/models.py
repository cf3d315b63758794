"""Thresholds of the amount that an organization or project spends in a month (UTC), and reports of reached ones."""

from django.db import models
from django.db.models import Q

from control.core.ids import threshold_id
from control.tenants.accounts.models import Organization, Project


class Threshold(models.Model):
    class Unit(models.TextChoices):
        NANOUSD = "nanousd", "billionths of a US dollar"
        PERCENT = "percent", "percent of the spend cap"

    id = models.CharField(primary_key=True, max_length=40, default=threshold_id, editable=False)
    organization = models.ForeignKey(Organization, on_delete=models.CASCADE, related_name="+")
    project = models.ForeignKey(
        Project,
        on_delete=models.CASCADE,
        related_name="+",
        null=True,
        blank=True,
        help_text="Null: the spending of all projects counts.",
    )
    unit = models.CharField(max_length=8, choices=Unit.choices)
    value = models.BigIntegerField()
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["organization", "unit", "value"],
                condition=Q(project=None),
                name="threshold_once_per_organization",
            ),
            models.UniqueConstraint(fields=["project", "unit", "value"], name="threshold_once_per_project"),
        ]

    def __str__(self) -> str:
        return f"{self.value / 1e9:g} USD" if self.unit == self.Unit.NANOUSD else f"{self.value} % of the cap"


class ThresholdReport(models.Model):
    """Records that a threshold was reached in a month. One transaction writes the report and its event and sends the
    mail, so each of them exists only once.

    The report has no foreign key to the threshold. If a customer deletes a threshold and sets it again in the same
    month, it is therefore not reported again.
    """

    organization = models.ForeignKey(Organization, on_delete=models.CASCADE, related_name="+")
    project_id = models.CharField(max_length=40, blank=True, help_text="Empty: of the whole organization.")
    unit = models.CharField(max_length=8, choices=Threshold.Unit.choices)
    value = models.BigIntegerField()
    month = models.DateField(help_text="Its first day.")
    spent_nanousd = models.BigIntegerField(help_text="The amount spent when the threshold was found to be reached.")
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["organization", "project_id", "unit", "value", "month"], name="threshold_report_once_a_month"
            )
        ]

    def __str__(self) -> str:
        return f"{self.value} {self.unit} in {self.month:%Y-%m}"
