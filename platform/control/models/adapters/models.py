"""The table of LoRA adapters. An adapter's two files are in storage, under the names that peft gives them."""

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
        max_length=240,  # for fine-tuned adapters; customers give names of at most 64 characters
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
        """Returns the value of `model` that selects this adapter in requests to the deployment.

        The name of a fine-tuned adapter does not depend on the deployment.
        """
        return self.name if is_fine_tuned(self.name) else f"{deployment_name}:{self.name}"


def is_fine_tuned(name: str) -> bool:
    """Returns whether a model name has the form `ft:MODEL:SUFFIX:ID`, which only fine-tuned adapters have.

    The name `ft:NAME`, with a single colon, selects the adapter NAME of a deployment that is named `ft`.
    """
    return name.startswith("ft:") and name.count(":") > 1
