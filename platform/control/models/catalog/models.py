"""Tables of base models, base speculators (which all organizations share) and organizations' own speculators."""

from django.db import models
from django.db.models import Q

from control.core.ids import base_model_id, base_speculator_id, speculator_id
from control.tenants.accounts.models import Organization
from control.tenants.accounts.projects import ProjectObject


class BaseModel(ProjectObject):
    """A target model: a local folder of safetensors. If `organization` is null, every organization may use it."""

    class Status(models.TextChoices):
        CHECKING = "checking"
        READY = "ready"
        REFUSED = "refused"

    id = models.CharField(primary_key=True, max_length=40, default=base_model_id, editable=False)
    organization = models.ForeignKey(
        Organization, on_delete=models.CASCADE, related_name="base_models", null=True, blank=True
    )
    name = models.CharField(max_length=120)
    source = models.CharField(
        max_length=1000, blank=True, db_default="", help_text="The source that the API request named."
    )
    status = models.CharField(max_length=16, choices=Status, default=Status.READY, db_default=Status.READY)
    error = models.JSONField(null=True, blank=True, help_text="Why the model was refused: {code, message}")
    path = models.CharField(max_length=1000, blank=True)
    model_type = models.CharField(max_length=40, blank=True)
    revision = models.CharField(
        max_length=64,
        blank=True,
        help_text="SHA-256 of the configuration and weight files. A speculator records the revision of its model.",
    )
    perplexity = models.FloatField(
        null=True, blank=True, help_text="Per token, on the fixed text of the check; null: not measured."
    )
    sizes = models.JSONField(
        null=True, blank=True, help_text="The sizes from which an engine's memory is planned; null: unknown."
    )
    texts = models.JSONField(
        null=True, blank=True, help_text="SHA-256 of the tokenizer and of the chat template; null: unknown."
    )
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["organization", "name"], name="base_model_name_per_organization"),
            models.UniqueConstraint(fields=["name"], condition=Q(organization=None), name="base_model_name_shared"),
        ]

    def __str__(self) -> str:
        return self.name


class BaseSpeculator(models.Model):
    """A speculator for a shared model that every organization may use. Only operators publish and withdraw it.

    The row and the files say nothing about the organization in which the speculator was trained.
    """

    id = models.CharField(primary_key=True, max_length=40, default=base_speculator_id, editable=False)
    base_model = models.ForeignKey(BaseModel, on_delete=models.PROTECT, related_name="base_speculators")
    name = models.CharField(max_length=64)
    version = models.PositiveIntegerField()
    kind = models.CharField(max_length=24)
    description = models.CharField(max_length=1000, blank=True)
    target_revision = models.CharField(max_length=64)
    target_texts = models.JSONField(
        null=True, blank=True, help_text="The model's tokenizer and chat template at the training; null: unknown."
    )
    storage_prefix = models.CharField(max_length=400, help_text="Prefix of the artifact's storage keys.")
    created_at = models.DateTimeField(auto_now_add=True)
    withdrawn_at = models.DateTimeField(
        null=True, blank=True, help_text="Organizations that use the speculator already keep it."
    )

    class Meta:
        constraints = [models.UniqueConstraint(fields=["base_model", "name", "version"], name="base_speculator_once")]

    def __str__(self) -> str:
        return f"{self.name} v{self.version}"


class Speculator(ProjectObject):
    class Status(models.TextChoices):
        TRAINING = "training"
        READY = "ready"
        FAILED = "failed"
        DELETED = "deleted"  # the row stays: pipelines and evaluations name it

    id = models.CharField(primary_key=True, max_length=40, default=speculator_id, editable=False)
    organization = models.ForeignKey(Organization, on_delete=models.CASCADE, related_name="speculators")
    base_model = models.ForeignKey(BaseModel, on_delete=models.PROTECT, related_name="speculators")
    name = models.CharField(max_length=120)
    version = models.PositiveIntegerField(default=1)
    kind = models.CharField(max_length=24)
    status = models.CharField(max_length=16, choices=Status.choices, default=Status.TRAINING)
    target_revision = models.CharField(max_length=64)
    target_texts = models.JSONField(
        null=True, blank=True, help_text="The model's tokenizer and chat template at the training; null: unknown."
    )
    storage_prefix = models.CharField(
        max_length=400, blank=True, help_text="Prefix of the artifact's storage keys; set when the speculator is ready."
    )
    base_speculator = models.ForeignKey(
        BaseSpeculator,
        on_delete=models.PROTECT,
        related_name="uses",
        null=True,
        blank=True,
        help_text="The row stands for the organization's use of this base speculator; `storage_prefix` has no files.",
    )
    training = models.JSONField(default=dict, blank=True, help_text="The training job's result.")
    report = models.JSONField(default=dict, blank=True, help_text="The latest evaluation's report.")
    plot_key = models.CharField(max_length=400, blank=True, help_text="The latest evaluation's PNG in storage.")
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["organization", "name", "version"], name="speculator_version_once"),
        ]

    @property
    def artifact_prefix(self) -> str:
        """Prefix of the storage keys of the files that engines read; empty until the speculator is ready."""
        return self.storage_prefix if self.base_speculator is None else self.base_speculator.storage_prefix

    def __str__(self) -> str:
        return f"{self.name} v{self.version}"
