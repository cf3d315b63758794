"""Pages of limits, users, members, projects, API keys and the audit log."""

from typing import Any, cast

from django.contrib import admin, messages
from django.contrib.auth.admin import UserAdmin as DjangoUserAdmin
from django.contrib.auth.models import Group
from django.core.exceptions import PermissionDenied
from django.db.models import Model
from django.http import HttpRequest, HttpResponse
from django.utils.html import format_html
from unfold.admin import ModelAdmin
from unfold.forms import AdminPasswordChangeForm, UserChangeForm, UserCreationForm

from control.operations.console.base import CreatableAdmin, RowsAdmin, service_action
from control.operations.console.form_pages import FormAdmin, form_action
from control.operations.console.sidebar import SidebarEntry
from control.operations.console.visitors import member_of
from control.tenants.accounts.models import ApiKey, Member, Project, User
from control.tenants.administration.limits import LimitValues, limits_set
from control.tenants.administration.requests import CHANGE_ROLE, INVITE_MEMBER
from control.tenants.administration.schemas import DEFAULT_GRACE
from control.tenants.administration.services import (
    api_key_create,
    api_key_revoke,
    api_key_rotate,
    member_invite_again,
    member_remove,
    project_archive,
    project_create,
)
from control.tenants.audit.models import AuditEvent
from control.tenants.quotas.models import Limits

NEW_KEY_MESSAGE = 'The key, which is shown only once: <strong class="console-secret">{}</strong>'

admin.site.unregister(Group)  # permissions are given to users, not to groups


@admin.register(Limits)
class LimitsAdmin(CreatableAdmin):
    """Limits of one organization; an empty field means the default."""

    sidebar = SidebarEntry("Tenants", 3, "Limits", "production_quantity_limits")

    list_display = ["organization", *LimitValues.__annotations__]
    fields = ["organization", *LimitValues.__annotations__]

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return self.has_operate_permission(request)

    def get_readonly_fields(self, request: HttpRequest, obj: Model | None = None) -> list[str]:
        return [] if obj is None else ["organization"]

    def save_model(self, request: HttpRequest, obj: Limits, form: Any, change: bool) -> None:
        values = {name: form.cleaned_data[name] for name in LimitValues.__annotations__}
        limits_set(organization=obj.organization, values=cast(LimitValues, values))


@admin.register(AuditEvent)
class AuditEventAdmin(RowsAdmin):
    scope = "admin"
    sidebar = SidebarEntry("Tenants", 8, "Audit", "history")
    list_display = ["created_at", "action", "object_id", "organization", "actor"]
    list_filter = ["organization", "action"]
    search_fields = ["object_id", "actor_id", "request_id"]
    fields = [*list_display, "object_type", "ip", "request_id"]

    @admin.display(description="by", ordering="actor_id")
    def actor(self, row: AuditEvent) -> str:
        return f"{row.get_actor_type_display()} {row.actor_id}"


def _has_not_joined(row: Member) -> bool:
    return not row.has_joined


@admin.register(Member)
class MemberAdmin(FormAdmin):
    scope = "admin"
    sidebar = SidebarEntry("Access", 1, "Members", "group")
    list_display = ["user", "organization", "role", "joined"]
    list_filter = ["organization", "role"]
    list_select_related = ["user", "organization"]
    create_form = INVITE_MEMBER
    fields = ["organization", "user", "role", "joined"]
    actions_detail = ["change_role", "invite_again", "remove"]

    change_role = form_action("change_role", CHANGE_ROLE, icon="swap_horiz", when=lambda row: True)

    @admin.display(description="has signed in", boolean=True)
    def joined(self, row: Member) -> bool:
        return row.has_joined

    @service_action(
        "Send the invitation again",
        "The link in the earlier mail no longer works.",
        icon="forward_to_inbox",
        when=_has_not_joined,
    )
    def invite_again(self, row: Member) -> str:
        member_invite_again(member=row)
        return f"The invitation is sent to {row.user.email} again."

    @service_action(
        "Remove",
        "The member's API keys are removed at once. Keys without a member belong to the organization and stay.",
        icon="person_remove",
        danger=True,
    )
    def remove(self, row: Member) -> str:
        member_remove(member=row)
        return f"{row.user} is no longer a member of {row.organization}."


def _is_not_archived(row: Project) -> bool:
    return row.archived_at is None


@admin.register(Project)
class ProjectAdmin(CreatableAdmin):
    scope = "admin"
    sidebar = SidebarEntry("Tenants", 2, "Projects", "folder")
    list_display = ["name", "organization", "id", "created_at", "archived_at"]
    list_filter = ["organization"]
    search_fields = ["name", "id"]
    list_select_related = ["organization"]
    actions_detail = ["archive"]

    def get_fields(self, request: HttpRequest, obj: Model | None = None) -> list[str]:
        form_fields = ["organization", "name"]
        return form_fields if obj is None else [*form_fields, "id", "created_at", "archived_at"]

    def get_readonly_fields(self, request: HttpRequest, obj: Model | None = None) -> list[str]:
        return [] if obj is None else self.get_fields(request, obj)

    def create(self, request: HttpRequest, values: dict[str, Any]) -> Project:
        return project_create(**values)

    @service_action(
        "Archive",
        "All API keys of this project are refused from now on. This cannot be undone.",
        icon="archive",
        danger=True,
        when=_is_not_archived,
    )
    def archive(self, row: Project) -> str:
        return f"{project_archive(project=row).name} is archived."


def _is_not_revoked(row: ApiKey) -> bool:
    return row.revoked_at is None


@admin.register(ApiKey)
class ApiKeyAdmin(CreatableAdmin):
    scope = "admin"
    sidebar = SidebarEntry("Access", 2, "API keys", "key")
    list_display = ["name", "organization", "key", "created_at", "last_used_at", "expires_at", "revoked_at"]
    list_filter = ["organization"]
    search_fields = ["name", "id"]
    actions_detail = ["rotate", "revoke"]

    def get_fields(self, request: HttpRequest, obj: Model | None = None) -> list[str]:
        form_fields = ["organization", "name", "expires_at"]
        return form_fields if obj is None else [*form_fields, "key", "created_at", "last_used_at", "revoked_at"]

    def get_readonly_fields(self, request: HttpRequest, obj: Model | None = None) -> list[str]:
        return [] if obj is None else self.get_fields(request, obj)

    @admin.display(description="key")
    def key(self, row: ApiKey) -> str:
        return f"sk_live_{row.pk}…{row.last4}"

    def create(self, request: HttpRequest, values: dict[str, Any]) -> ApiKey:
        key, token = api_key_create(**values)
        messages.warning(request, format_html(NEW_KEY_MESSAGE, token))
        return key

    @service_action(
        "Revoke",
        "Requests with this key are refused from now on. This cannot be undone.",
        icon="block",
        danger=True,
        when=_is_not_revoked,
    )
    def revoke(self, row: ApiKey) -> str:
        api_key_revoke(key=row)
        return f"{row.name} is revoked."

    @service_action(
        "Rotate",
        "Creates a new key with the same permissions; this key stays valid for one more day.",
        icon="autorenew",
        when=_is_not_revoked,
    )
    def rotate(self, row: ApiKey) -> str:
        _, token = api_key_rotate(key=row, grace=DEFAULT_GRACE)
        return format_html(NEW_KEY_MESSAGE, token)


@admin.register(User)
class UserAdmin(DjangoUserAdmin, ModelAdmin):  # type: ignore[type-arg,misc]  # unfold has no types
    """Uses Django's own forms, because no service of this project manages console users. Only staff see the pages."""

    sidebar = SidebarEntry("Access", 3, "Users", "person")

    form = UserChangeForm
    add_form = UserCreationForm
    change_password_form = AdminPasswordChangeForm
    list_display = ["username", "email", "is_staff", "is_superuser", "last_login"]
    list_filter = ["is_staff", "is_superuser", "is_active"]
    filter_horizontal = []
    fieldsets = [
        (None, {"fields": ["username", "password"]}),
        ("Personal info", {"fields": ["first_name", "last_name", "email"]}),
        ("Permissions", {"fields": ["is_active", "is_staff", "is_superuser", "user_permissions"]}),
        ("Important dates", {"fields": ["last_login", "date_joined"]}),
    ]

    def has_module_permission(self, request: HttpRequest) -> bool:
        return member_of(request) is None and super().has_module_permission(request)

    def has_view_permission(self, request: HttpRequest, obj: User | None = None) -> bool:
        return member_of(request) is None and super().has_view_permission(request, obj)

    def has_add_permission(self, request: HttpRequest) -> bool:
        return member_of(request) is None and super().has_add_permission(request)

    def has_change_permission(self, request: HttpRequest, obj: User | None = None) -> bool:
        return member_of(request) is None and super().has_change_permission(request, obj)

    def has_delete_permission(self, request: HttpRequest, obj: User | None = None) -> bool:
        return member_of(request) is None and super().has_delete_permission(request, obj)

    def history_view(
        self, request: HttpRequest, object_id: str, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Refuses members before the user is looked up, because Django redirects if the user does not exist."""
        if member_of(request) is not None:
            raise PermissionDenied
        return super().history_view(request, object_id, extra_context)
