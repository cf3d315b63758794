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
        max_length=64, help_text="A request selects the adapter by setting `model` to `deployment:name`."
    )
    rank = models.PositiveIntegerField()
    target_modules = models.JSONField()
    size_bytes = models.BigIntegerField()
    storage_prefix = models.CharField(max_length=400)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["organization", "name"], name="adapter_name_per_organization"),
        ]
        indexes = [models.Index(fields=["organization", "-id"], name="adapter_page")]

    def __str__(self) -> str:
        return self.name
