"""Requests and responses of API keys, members, projects and the storage limit."""

import datetime as dt
from typing import Annotated, Any, Literal, Self

from django.core.exceptions import ValidationError
from django.core.validators import validate_email
from pydantic import AfterValidator, Field, SkipValidation
from pydantic_core import PydanticCustomError

from control.core.api.schemas import IntRange, OneOf, RequestModel, ResponseModel, Text, Unix
from control.tenants.accounts.keys import PREFIX
from control.tenants.accounts.models import ApiKey, Member, Organization, Project
from control.tenants.accounts.scopes import SCOPES
from control.tenants.quotas.quota import quota_of
from control.tenants.quotas.storage import stored_bytes

MAX_GRACE = dt.timedelta(days=30)
DEFAULT_GRACE = dt.timedelta(days=1)
MAX_UNIX = 253_402_300_799  # the last second of the year 9999
MAX_RESTRICTIONS = 100


def _check_email(value: str) -> str:
    try:
        validate_email(value)
    except ValidationError:
        raise PydanticCustomError("email", "must be an email address") from None
    return value


_Email = Annotated[str, Text(150), AfterValidator(_check_email), Field(json_schema_extra={"format": "email"})]
_ExpiresAt = Annotated[int, IntRange(0, MAX_UNIX), Field(json_schema_extra={"format": "int64"})]


class ApiKeyInput(RequestModel):
    name: Annotated[str, Text(120)]
    scopes: Annotated[list[Annotated[str, OneOf(SCOPES)]], Field(min_length=1, max_length=len(SCOPES))] | None = None
    project_id: Annotated[str, Text(40)] | None = None
    member_id: Annotated[str, Text(40)] | None = None
    deployment_ids: (
        Annotated[list[Annotated[str, Text(40)]], Field(min_length=1, max_length=MAX_RESTRICTIONS)] | None
    ) = None
    expires_at: _ExpiresAt | None = None


class ApiKeyRotateInput(RequestModel):
    grace_seconds: Annotated[int, IntRange(0, int(MAX_GRACE.total_seconds()))] = int(DEFAULT_GRACE.total_seconds())


class MemberInput(RequestModel):
    email: _Email
    role: Annotated[str, OneOf(Member.Role)] = Member.Role.MEMBER.value


class MemberUpdateInput(RequestModel):
    role: Annotated[str, OneOf(Member.Role)]


class ProjectInput(RequestModel):
    name: Annotated[str, Text(120)]


class ApiKeyObject(ResponseModel):
    id: str
    object: Literal["api_key"] = "api_key"
    name: str
    hint: str = Field(description="The first and last characters of the key.")
    scopes: SkipValidation[list[str]]
    project_id: str | None
    member_id: str | None = Field(
        description="The member to whom the key belongs. The member's role limits the key, and the key is removed with "
        "the member. Null if the key belongs to the organization."
    )
    deployment_ids: SkipValidation[list[str] | None] = Field(
        description="The only deployments that the key may use. Null if it may use all deployments."
    )
    rotated_from: str | None
    created_at: Unix
    expires_at: Unix | None
    revoked_at: Unix | None
    last_used_at: Unix | None

    @classmethod
    def of(cls, row: ApiKey, **fields: Any) -> Self:
        hint = f"{PREFIX}{row.pk}…{row.last4}"
        member_id = None if row.member is None else row.member.public_id
        return cls.from_row(row, hint=hint, rotated_from=row.rotated_from_id, member_id=member_id, **fields)


class NewApiKeyObject(ApiKeyObject):
    key: str | None = Field(
        description="The key, which is shown only once. Null in a response that is replayed for an Idempotency-Key."
    )


class MemberObject(ResponseModel):
    id: str
    object: Literal["member"] = "member"
    email: str
    role: Annotated[str, OneOf(Member.Role)]
    status: Literal["invited", "active"] = Field(description="`invited`: the member has never signed in.")

    @classmethod
    def of(cls, member: Member) -> Self:
        status = "active" if member.has_joined else "invited"
        return cls.from_row(member, id=member.public_id, email=member.user.username, status=status)


class ProjectObject(ResponseModel):
    id: str
    object: Literal["project"] = "project"
    name: str
    created_at: Unix
    archived_at: Unix | None

    @classmethod
    def of(cls, project: Project) -> Self:
        return cls.from_row(project)


class StorageObject(ResponseModel):
    object: Literal["storage"] = "storage"
    limit_bytes: int
    used_bytes: int = Field(description="The sum of the five parts.")
    files_bytes: int
    uploads_bytes: int = Field(description="Parts of uploads that are not completed yet.")
    adapters_bytes: int
    captures_bytes: int
    checkpoints_bytes: int = Field(description="Adapters in the checkpoints of fine-tuning jobs that have ended.")

    @classmethod
    def of(cls, organization: Organization) -> Self:
        stored = stored_bytes(organization.pk)
        parts = {f"{part}_bytes": num_bytes for part, num_bytes in stored.items()}
        limit_bytes = quota_of(organization.pk).storage_bytes
        return cls.model_validate({"limit_bytes": limit_bytes, "used_bytes": sum(stored.values()), **parts})
