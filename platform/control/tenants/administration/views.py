"""/v1/api_keys, /v1/members and /v1/projects: all under the scope `admin`."""

import datetime as dt

from django.utils import timezone
from rest_framework.request import Request
from rest_framework.response import Response

from control.core.api.errors import ApiError
from control.core.api.paging import paginate
from control.serving.deployments.selectors import deployment_get
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
from control.tenants.administration.serializers import (
    ApiKeyInput,
    ApiKeyRotateInput,
    MemberInput,
    MemberUpdateInput,
    ProjectInput,
    api_key_body,
    member_body,
    new_api_key_body,
    project_body,
)
from control.tenants.administration.services import (
    api_key_create,
    api_key_revoke,
    api_key_rotate,
    member_change,
    member_invite,
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

    def get(self, request: Request) -> Response:
        return paginate(api_keys_list(self.organization), request, api_key_body, by="created_at")

    def post(self, request: Request) -> Response:
        """Without `scopes`, the new key may do what the calling one may."""
        form = ApiKeyInput(data=request.data)
        form.is_valid(raise_exception=True)
        values = form.validated_data
        deployment_ids, project_id = values["deployment_ids"], values["project_id"]
        scopes = values["scopes"] or (None if deployment_ids else self.key.scopes)
        if scopes is not None:
            refuse_wider_scopes(granting=self.key, scopes=scopes)
        for deployment_id in deployment_ids or ():
            deployment_get(self.organization, deployment_id)
        key, token = api_key_create(
            organization=self.organization,
            name=values["name"],
            expires_at=_future(values["expires_at"]),
            scopes=scopes,
            project=None if project_id is None else project_get(self.organization, project_id),
            deployment_ids=deployment_ids,
        )
        return Response(new_api_key_body(key, token), status=201)


class ApiKeyView(OrganizationView):
    scope = ADMIN

    def get(self, request: Request, key_id: str) -> Response:
        return Response(api_key_body(api_key_get(self.organization, key_id)))

    def delete(self, request: Request, key_id: str) -> Response:
        """Requests with this key are refused from now on, for good. The row stays."""
        key = api_key_revoke(key=api_key_get(self.organization, key_id))
        return Response({"id": key.pk, "object": "api_key", "deleted": True})


class ApiKeyRotateView(OrganizationView):
    scope = ADMIN
    not_replayed = ("key",)

    def post(self, request: Request, key_id: str) -> Response:
        """A new key with the same rights. The old one goes on for `grace_seconds`, a day unless said otherwise."""
        key = api_key_get(self.organization, key_id)
        form = ApiKeyRotateInput(data=request.data)
        form.is_valid(raise_exception=True)
        refuse_wider_scopes(granting=self.key, scopes=key.scopes)
        grace = dt.timedelta(seconds=form.validated_data["grace_seconds"])
        return Response(new_api_key_body(*api_key_rotate(key=key, grace=grace)), status=201)


class MembersView(OrganizationView):
    scope = ADMIN

    def get(self, request: Request) -> Response:
        return paginate(members_list(self.organization), request, member_body, by="public_id", id_field="public_id")

    def post(self, request: Request) -> Response:
        form = MemberInput(data=request.data)
        form.is_valid(raise_exception=True)
        email, role = form.validated_data["email"], Member.Role(form.validated_data["role"])
        member = member_invite(organization=self.organization, email=email, role=role)
        return Response(member_body(member), status=201)


class MemberView(OrganizationView):
    scope = ADMIN

    def get(self, request: Request, member_id: str) -> Response:
        return Response(member_body(member_get(self.organization, member_id)))

    def patch(self, request: Request, member_id: str) -> Response:
        member = member_get(self.organization, member_id)
        form = MemberUpdateInput(data=request.data)
        form.is_valid(raise_exception=True)
        return Response(member_body(member_change(member=member, role=Member.Role(form.validated_data["role"]))))

    def delete(self, request: Request, member_id: str) -> Response:
        member = member_get(self.organization, member_id)
        member_remove(member=member)
        return Response({"id": member.public_id, "object": "member", "deleted": True})


class ProjectsView(OrganizationView):
    scope = ADMIN

    def get(self, request: Request) -> Response:
        return paginate(projects_list(self.organization), request, project_body)

    def post(self, request: Request) -> Response:
        form = ProjectInput(data=request.data)
        form.is_valid(raise_exception=True)
        project = project_create(organization=self.organization, name=form.validated_data["name"])
        return Response(project_body(project), status=201)


class ProjectView(OrganizationView):
    scope = ADMIN

    def get(self, request: Request, project_id: str) -> Response:
        return Response(project_body(project_get(self.organization, project_id)))

    def patch(self, request: Request, project_id: str) -> Response:
        project = project_get(self.organization, project_id)
        form = ProjectInput(data=request.data)
        form.is_valid(raise_exception=True)
        return Response(project_body(project_rename(project=project, name=form.validated_data["name"])))


class ProjectArchiveView(OrganizationView):
    scope = ADMIN

    def post(self, request: Request, project_id: str) -> Response:
        return Response(project_body(project_archive(project=project_get(self.organization, project_id))))


def _future(moment: int | None) -> dt.datetime | None:
    if moment is None:
        return None
    expires_at = dt.datetime.fromtimestamp(moment, tz=dt.UTC)
    if expires_at <= timezone.now():
        raise ApiError(400, "expires_at must lie in the future.", "invalid_value", "expires_at")
    return expires_at
