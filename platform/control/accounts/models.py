"""Who may do what: organizations own everything; keys act for one organization."""

from django.conf import settings
from django.contrib.auth.models import AbstractUser
from django.db import models

from control.ids import organization_id


class Organization(models.Model):
    id = models.CharField(primary_key=True, max_length=40, default=organization_id, editable=False)
    name = models.CharField(max_length=120, unique=True)
    created_at = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return self.name


class User(AbstractUser):
    """A human of the web admin. API callers are keys, not users."""


class Member(models.Model):
    class Role(models.TextChoices):
        OWNER = "owner"
        MEMBER = "member"

    organization = models.ForeignKey(Organization, on_delete=models.CASCADE, related_name="members")
    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="memberships")
    role = models.CharField(max_length=16, choices=Role.choices, default=Role.MEMBER)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["organization", "user"], name="member_once_per_organization")]

    def __str__(self) -> str:
        return f"{self.user} in {self.organization}"


class ApiKey(models.Model):
    """`sk_live_<8 id><30 secret><6 crc>`; of the secret only its SHA-256 is stored."""

    id = models.CharField(primary_key=True, max_length=8, editable=False)
    organization = models.ForeignKey(Organization, on_delete=models.CASCADE, related_name="api_keys")
    name = models.CharField(max_length=120)
    secret_sha256 = models.CharField(max_length=64, editable=False)
    last4 = models.CharField(max_length=4, editable=False)
    created_at = models.DateTimeField(auto_now_add=True)
    expires_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True)
    last_used_at = models.DateTimeField(null=True, blank=True)

    def __str__(self) -> str:
        return f"{self.name} (…{self.last4})"
