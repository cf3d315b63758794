"""Organizations, users, members, projects and API keys. An organization owns its objects; an API key acts for it."""

from django.conf import settings
from django.contrib.auth.models import AbstractUser
from django.db import models

from control.core.ids import member_id, organization_id, project_id
from control.tenants.accounts.scopes import ROLE_SCOPES, full_access, scopes_within


class Organization(models.Model):
    id = models.CharField(primary_key=True, max_length=40, default=organization_id, editable=False)
    name = models.CharField(max_length=120, unique=True)
    created_at = models.DateTimeField(auto_now_add=True)
    requires_two_factor = models.BooleanField(
        default=False, db_default=False, help_text="Whether members see nothing before they have a second factor."
    )
    deletion_requested_at = models.DateTimeField(
        null=True, blank=True, editable=False, help_text="From then on, its API keys are refused."
    )
    deletion_requested_by = models.CharField(
        max_length=48, blank=True, db_default="", editable=False, help_text="The id of an API key, member or operator."
    )
    erase_after = models.DateTimeField(
        null=True, blank=True, editable=False, help_text="Until then, its owners can cancel the deletion."
    )

    def __str__(self) -> str:
        return self.name


class User(AbstractUser):
    """A person who signs in to the console. API callers are keys, not users."""


class Member(models.Model):
    class Role(models.TextChoices):
        OWNER = "owner"
        MEMBER = "member"
        BILLING = "billing"
        READ_ONLY = "read_only"

    public_id = models.CharField(max_length=40, unique=True, default=member_id, editable=False)
    organization = models.ForeignKey(Organization, on_delete=models.CASCADE, related_name="members")
    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="memberships")
    role = models.CharField(max_length=16, choices=Role.choices, default=Role.MEMBER)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["organization", "user"], name="member_once_per_organization")]

    def __str__(self) -> str:
        return f"{self.user} in {self.organization}"

    @property
    def has_joined(self) -> bool:
        """Whether the user has ever signed in. Until then, the member is only invited."""
        return self.user.last_login is not None


class Project(models.Model):
    """Groups API keys and their usage. The keys of an archived project are refused."""

    id = models.CharField(primary_key=True, max_length=40, default=project_id, editable=False)
    organization = models.ForeignKey(Organization, on_delete=models.CASCADE, related_name="projects")
    name = models.CharField(max_length=120)
    created_at = models.DateTimeField(auto_now_add=True)
    archived_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["organization", "name"], name="project_name_per_organization")]

    def __str__(self) -> str:
        return self.name


class ApiKey(models.Model):
    """An API key, whose format is described in `keys`. Only the SHA-256 of its secret is stored."""

    id = models.CharField(primary_key=True, max_length=8, editable=False)
    organization = models.ForeignKey(Organization, on_delete=models.CASCADE, related_name="api_keys")
    name = models.CharField(max_length=120)
    secret_sha256 = models.CharField(max_length=64, editable=False)
    last4 = models.CharField(max_length=4, editable=False)
    scopes = models.JSONField(default=full_access, db_default=models.Value(full_access(), models.JSONField()))
    project = models.ForeignKey(Project, on_delete=models.PROTECT, related_name="api_keys", null=True, blank=True)
    member = models.ForeignKey(
        Member,
        on_delete=models.CASCADE,
        related_name="api_keys",
        null=True,
        blank=True,
        help_text="The member whose role limits the key; null: the key belongs to the organization.",
    )
    deployment_ids = models.JSONField(
        null=True, blank=True, help_text="The only deployments that the key may use; null for all."
    )
    rotated_from = models.ForeignKey("self", on_delete=models.SET_NULL, related_name="+", null=True, blank=True)
    created_at = models.DateTimeField(auto_now_add=True)
    expires_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True)
    last_used_at = models.DateTimeField(null=True, blank=True)

    def __str__(self) -> str:
        return f"{self.name} (…{self.last4})"

    @property
    def granted_scopes(self) -> list[str]:
        """The key's scopes. If the key has a member, only the scopes that the member's present role includes."""
        return list(self.scopes) if self.member is None else scopes_within(self.scopes, ROLE_SCOPES[self.member.role])
