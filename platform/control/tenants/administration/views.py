"""/v1/api_keys, /v1/members and /v1/projects, which need the scope `admin`, and /v1/storage."""

import datetime as dt

from rest_framework.request import Request
from rest_framework.response import Response

from control.core.api.operation import PAGING, operation
from control.core.api.paging import paginate
from control.core.api.schemas import Deleted, Page
from control.tenants.accounts.models import Member
from control.tenants.accounts.scopes import ADMIN
from control.tenants.accounts.selectors import (
    api_key_get,
    api_keys_list,
    member_get,
    members_list,
    project_get,
    projects_list,
)
from control.tenants.administration.requests import create_from
from control.tenants.administration.schemas import (
    ApiKeyInput,
    ApiKeyObject,
    ApiKeyRotateInput,
    MemberInput,
    MemberObject,
    MemberUpdateInput,
    NewApiKeyObject,
    ProjectInput,
    ProjectObject,
    StorageObject,
)
from control.tenants.administration.services import (
    api_key_revoke,
    api_key_rotate,
    member_change,
    member_invite,
    member_invite_again,
    member_remove,
    project_archive,
    project_create,
    project_rename,
    refuse_wider_scopes,
)
from control.tenants.authentication.views import OrganizationView


class ApiKeysView(OrganizationView):
    scope = ADMIN
    not_replayed = ("key",)

    @operation("api_keys.list", response=Page[ApiKeyObject], query=PAGING)
    def get(self, request: Request) -> Response:
        return paginate(api_keys_list(self.organization), request, ApiKeyObject.of, by="created_at")

    @operation("api_keys.create", request=ApiKeyInput, response=NewApiKeyObject, status=201)
    def post(self, request: Request, body: ApiKeyInput) -> NewApiKeyObject:
        """Without `scopes`, the new key gets the scopes of the key that creates it."""
        key, token = create_from(self.key, body)
        return NewApiKeyObject.of(key, key=token)


class ApiKeyView(OrganizationView):
    scope = ADMIN

    @operation("api_keys.retrieve", response=ApiKeyObject)
    def get(self, request: Request, key_id: str) -> ApiKeyObject:
        return ApiKeyObject.of(api_key_get(self.organization, key_id))

    @operation("api_keys.delete", summary="Revoke an API key", response=Deleted)
    def delete(self, request: Request, key_id: str) -> Deleted:
        """Revokes the key for good: requests with it are refused from now on. The key can still be retrieved."""
        key = api_key_revoke(key=api_key_get(self.organization, key_id))
        return Deleted(id=key.pk, object="api_key")


class ApiKeyRotateView(OrganizationView):
    scope = ADMIN
    not_replayed = ("key",)

    @operation("api_keys.rotate", request=ApiKeyRotateInput, response=NewApiKeyObject, status=201)
    def post(self, request: Request, key_id: str, body: ApiKeyRotateInput) -> NewApiKeyObject:
        """Creates a key with the same rights. The old key works for the next `grace_seconds`, by default one day."""
        key = api_key_get(self.organization, key_id)
        refuse_wider_scopes(granting=self.key, scopes=key.scopes)
        created, token = api_key_rotate(key=key, grace=dt.timedelta(seconds=body.grace_seconds))
        return NewApiKeyObject.of(created, key=token)


class MembersView(OrganizationView):
    scope = ADMIN
    project_keys = "are refused"

    @operation("members.list", response=Page[MemberObject], query=PAGING)
    def get(self, request: Request) -> Response:
        return paginate(members_list(self.organization), request, MemberObject.of, by="public_id", id_field="public_id")

    @operation("members.create", summary="Add a member", request=MemberInput, response=MemberObject, status=201)
    def post(self, request: Request, body: MemberInput) -> MemberObject:
        """Sends an invitation by mail. Its link can be used once, within a week, to set a password."""
        role = Member.Role(body.role)
        return MemberObject.of(member_invite(organization=self.organization, email=body.email, role=role))


class MemberView(OrganizationView):
    scope = ADMIN
    project_keys = "are refused"

    @operation("members.retrieve", response=MemberObject)
    def get(self, request: Request, member_id: str) -> MemberObject:
        return MemberObject.of(member_get(self.organization, member_id))

    @operation("members.update", request=MemberUpdateInput, response=MemberObject)
    def patch(self, request: Request, member_id: str, body: MemberUpdateInput) -> MemberObject:
        member = member_get(self.organization, member_id)
        return MemberObject.of(member_change(member=member, role=Member.Role(body.role)))

    @operation("members.delete", response=Deleted)
    def delete(self, request: Request, member_id: str) -> Deleted:
        member = member_get(self.organization, member_id)
        member_remove(member=member)
        return Deleted(id=member.public_id, object="member")


class MemberInvitationView(OrganizationView):
    scope = ADMIN
    project_keys = "are refused"

    @operation("members.invite", summary="Send an invitation again", response=MemberObject)
    def post(self, request: Request, member_id: str) -> MemberObject:
        """Sends another mail with a link. The link of the earlier mail no longer works."""
        return MemberObject.of(member_invite_again(member=member_get(self.organization, member_id)))


class ProjectsView(OrganizationView):
    scope = ADMIN
    project_keys = "may read"

    @operation("projects.list", response=Page[ProjectObject], query=PAGING)
    def get(self, request: Request) -> Response:
        return paginate(projects_list(self.organization), request, ProjectObject.of)

    @operation("projects.create", request=ProjectInput, response=ProjectObject, status=201)
    def post(self, request: Request, body: ProjectInput) -> ProjectObject:
        return ProjectObject.of(project_create(organization=self.organization, name=body.name))


class ProjectView(OrganizationView):
    scope = ADMIN
    project_keys = "may read"

    @operation("projects.retrieve", response=ProjectObject)
    def get(self, request: Request, project_id: str) -> ProjectObject:
        return ProjectObject.of(project_get(self.organization, project_id))

    @operation("projects.update", request=ProjectInput, response=ProjectObject)
    def patch(self, request: Request, project_id: str, body: ProjectInput) -> ProjectObject:
        return ProjectObject.of(project_rename(project=project_get(self.organization, project_id), name=body.name))


class ProjectArchiveView(OrganizationView):
    scope = ADMIN
    project_keys = "may read"

    @operation("projects.archive", response=ProjectObject)
    def post(self, request: Request, project_id: str) -> ProjectObject:
        return ProjectObject.of(project_archive(project=project_get(self.organization, project_id)))


class StorageView(OrganizationView):
    scope = "usage"

    @operation("storage.retrieve", summary="Retrieve the number of stored bytes", response=StorageObject)
    def get(self, request: Request) -> StorageObject:
        """The bytes that the organization stores, and their limit."""
        return StorageObject.of(self.organization)
