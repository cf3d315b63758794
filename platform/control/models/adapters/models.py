"""An adapter of a base model: a row, and two files in storage, which have the names that peft gives them."""

from django.db import models

from control.core.ids import adapter_id
from control.models.catalog.models import BaseModel
from control.tenants.accounts.models import Organization
from control.tenants.accounts.projects import ProjectObject


class Adapter(ProjectObject):
    id = models.CharField(primary_key=True, max_length=40, default=adapter_id, editable=False)
    organization = models.ForeignKey(Organization, on_delete=models.CASCADE, related_name="adapters")
    base_model = models.ForeignKey(BaseModel, on_delete=models.PROTECT, related_name="adapters")
    name = models.CharField(
        max_length=240,  # of a fine-tuned adapter; customers give names of at most 64 characters
        help_text="A request selects the adapter by setting `model` to `deployment:name`, or to a name like `ft:...`.",
    )
    rank = models.PositiveIntegerField()
    target_modules = models.JSONField()
    size_bytes = models.BigIntegerField()
    storage_prefix = models.CharField(max_length=400)
    made_from = models.CharField(
        max_length=40,
        default="",
        db_default="",
        blank=True,
        help_text="Id of the fine-tuning job that made the adapter; empty: its files were uploaded.",
    )
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["organization", "name"], name="adapter_name_per_organization"),
        ]
        indexes = [
            models.Index(fields=["organization", "-id"], name="adapter_page"),
            models.Index(fields=["made_from"], name="adapter_made_from", condition=~models.Q(made_from="")),
        ]

    def __str__(self) -> str:
        return self.name

    def model_name(self, deployment_name: str) -> str:
        """Returns the `model` of requests for this adapter: a fine-tuned adapter has the same name everywhere."""
        return self.name if is_fine_tuned(self.name) else f"{deployment_name}:{self.name}"


def is_fine_tuned(name: str) -> bool:
    """Whether a model name is that of a fine-tuned adapter: `ft:MODEL:SUFFIX:ID`. No other adapter's name has a colon,
    so `ft:NAME` with a single colon is an adapter of a deployment that is named `ft`."""
    return name.startswith("ft:") and name.count(":") > 1
