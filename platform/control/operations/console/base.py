"""Base classes of the console's pages, which show rows and change them only through services."""

from collections.abc import Callable
from functools import wraps
from typing import Any, ClassVar

from django.contrib import admin, messages
from django.contrib.admin.utils import unquote
from django.db.models import Model, Q, QuerySet
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect
from django.urls import reverse
from django.utils.safestring import SafeString
from unfold.admin import ModelAdmin
from unfold.dataclasses import ActionDialog, UnfoldAction
from unfold.decorators import action
from unfold.enums import ActionVariant
from unfold.forms import BaseDialogForm

from control.core.api.errors import ApiError
from control.operations.console.rendering import page_url
from control.operations.console.visitors import member_may, member_of, staff_may
from control.tenants.accounts.models import Organization, Project


class RowsAdmin(ModelAdmin):  # type: ignore[misc]  # unfold has no types
    """Pages of rows that only services write, so the forms cannot add, edit or delete them.

    The actions, which call services, require the permission to change the rows.

    Staff see the rows of all organizations, with Django's permissions. A member of an organization sees the rows that
    `visible_to` selects, with the rights of the member's role.
    """

    scope: ClassVar[str] = ""  # the scope that a member's role needs (`accounts.scopes`); empty: for staff only
    staff_fields: ClassVar[tuple[str, ...]] = ()  # fields about the service's machines, which members do not see
    change_form_outer_before_template = "console/opening.html"
    list_per_page = 50
    show_full_result_count = False

    def visible_to(self, organization: Organization) -> Q:
        """Matches the rows that members of the organization see."""
        return Q(organization=organization)

    def changeable_by(self, organization: Organization) -> Q:
        """Matches the rows that members of the organization may change, if their role permits it."""
        return Q(organization=organization)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        rows: QuerySet[Any] = super().get_queryset(request)
        member = member_of(request)
        return rows if member is None else rows.filter(self.visible_to(member.organization))

    def row_to_change(self, request: HttpRequest, object_id: str) -> Any:
        """Returns a row that the caller may change. Raises: Http404: also for another organization's row.

        Args: object_id: quoted, as in the page's URL.
        """
        rows, member = self.model._default_manager.all(), member_of(request)
        if member is not None:
            rows = rows.filter(self.changeable_by(member.organization))
        return get_object_or_404(rows, pk=unquote(object_id))

    def opening(self, request: HttpRequest, row: Any) -> SafeString | str:
        """Returns the HTML that a row's page shows above the fields, such as figures and progress; may be empty."""
        return ""

    def render_change_form(
        self, request: HttpRequest, context: dict[str, Any], *args: Any, obj: Model | None = None, **kwargs: Any
    ) -> HttpResponse:
        context["opening"] = "" if obj is None else self.opening(request, obj)
        response: HttpResponse = super().render_change_form(request, context, *args, obj=obj, **kwargs)
        return response

    def has_module_permission(self, request: HttpRequest) -> bool:
        member = member_of(request)
        return self.has_view_permission(request) if member else bool(super().has_module_permission(request))

    def has_view_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        member = member_of(request)
        return member_may(member, self.scope, "GET") if member else bool(super().has_view_permission(request, obj))

    def may_write(self, request: HttpRequest, verb: str) -> bool:
        """Returns whether the caller may create or change rows. Args: verb: `add` or `change`, as in Django's names."""
        member = member_of(request)
        if member is None:
            return staff_may(request, f"{self.opts.app_label}.{verb}_{self.opts.model_name}")
        return member_may(member, self.scope, "POST")

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def has_operate_permission(self, request: HttpRequest, object_id: str | None = None) -> bool:
        return self.may_write(request, "change")

    def get_actions_detail(self, request: HttpRequest, object_id: str) -> list[UnfoldAction]:
        """Returns the actions that are applicable in the row's state. `object_id` is quoted, as in the page's URL."""
        try:
            row = self.row_to_change(request, object_id)
        except Http404:
            return []
        return [button for button in super().get_actions_detail(request, object_id) if button.method.is_applicable(row)]

    def get_list_filter(self, request: HttpRequest) -> list[Any]:
        """Hides the filter by organization from members, because they see only one organization."""
        offered = super().get_list_filter(request)
        return [name for name in offered if member_of(request) is None or name != "organization"]

    def get_fieldsets(self, request: HttpRequest, obj: Model | None = None) -> Any:
        fieldsets = super().get_fieldsets(request, obj)
        if member_of(request) is None:
            return fieldsets
        hidden = self.staff_fields
        return [
            (title, {**options, "fields": [name for name in options["fields"] if name not in hidden]})
            for title, options in fieldsets
        ]

    def formfield_for_foreignkey(self, db_field: Any, request: HttpRequest, **kwargs: Any) -> Any:
        """Offers and accepts only rows of a member's organization."""
        member = member_of(request)
        if member is not None:
            target = db_field.remote_field.model
            own = {Organization: Q(pk=member.organization_id), Project: Q(organization=member.organization_id)}[target]
            kwargs |= {"queryset": target._default_manager.filter(own)}
            if target is Organization:
                kwargs |= {"initial": member.organization_id, "empty_label": None}
        return super().formfield_for_foreignkey(db_field, request, **kwargs)

    def _get_obj_does_not_exist_redirect(self, request: HttpRequest, opts: Any, object_id: str) -> HttpResponse:
        """Staff are redirected with a message, as Django does; for members, the page does not exist."""
        if member_of(request) is not None:
            raise Http404
        response: HttpResponse = super()._get_obj_does_not_exist_redirect(request, opts, object_id)
        return response


class CreatableAdmin(RowsAdmin):
    """Pages with a form that creates a row. The service that `create` calls creates the row from the form's values."""

    def has_add_permission(self, request: HttpRequest) -> bool:
        return self.may_write(request, "add")

    def create(self, request: HttpRequest, values: dict[str, Any]) -> Model:
        raise NotImplementedError

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        """Copies the values of the row that the service created to `obj`, which the form has built but not saved."""
        created = self.create(request, form.cleaned_data)
        obj.__dict__.update(created.__dict__)

    def save_related(self, request: HttpRequest, form: Any, formsets: Any, change: bool) -> None:
        """Does nothing, because the service has already written all rows."""


def read_once(display: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Decorates a field that reads the database.

    The decorator stores the first result on the row, because Unfold computes each field of a page several times.
    """

    @wraps(display)
    def read(page: RowsAdmin, row: Model) -> Any:
        results: dict[str, Any] = row.__dict__.setdefault("_read_once", {})
        if display.__name__ not in results:
            results[display.__name__] = display(page, row)
        return results[display.__name__]

    return read


def service_action(
    title: str,
    description: str,
    *,
    icon: str,
    danger: bool = False,
    when: Callable[[Any], bool] = lambda row: True,
) -> Callable[[Callable[[Any, Any], str]], Any]:
    """Turns a method that takes a row, calls a service and returns the message to show into a button.

    The button stands on the row's page and opens a dialog, which sends a POST with a CSRF token. (With a plain link,
    another site could trigger the action.) `when` only hides the button; the service decides whether the transition is
    legal.
    """

    def decorate(method: Callable[[Any, Any], str]) -> Any:
        @wraps(method)
        def run(page: RowsAdmin, request: HttpRequest, form: BaseDialogForm, object_id: str) -> HttpResponse:
            row = page.row_to_change(request, object_id)
            try:
                messages.success(request, method(page, row))
            except ApiError as error:
                messages.error(request, error.message)
            return _to_page_of(request, row)

        run.is_applicable = when  # type: ignore[attr-defined]  # `action` copies it to the button's method
        button = action(
            run,
            description=title,
            icon=icon,
            permissions=["operate"],
            variant=ActionVariant.DANGER if danger else ActionVariant.PRIMARY,
            dialog=ActionDialog(
                title=f"{title}?", description=description, form_class=BaseDialogForm, form_submit_text=title
            ),
        )

        @wraps(button)
        def find_first(page: RowsAdmin, request: HttpRequest, object_id: str) -> HttpResponse:
            """Looks for the row before the dialog is shown: Unfold would show the dialog for any id."""
            if page.has_operate_permission(request, object_id):
                page.row_to_change(request, object_id)
            response: HttpResponse = button(page, request, object_id=object_id)
            return response

        return find_first

    return decorate


def _to_page_of(request: HttpRequest, row: Model) -> HttpResponse:
    """Redirects to the row's page, or to the list if the row is deleted.

    Unfold's dialogs post by htmx, which needs a header to leave the dialog.
    """
    exists = row.pk is not None and type(row)._default_manager.filter(pk=row.pk).exists()
    target = page_url(row) if exists else reverse(f"admin:{row._meta.app_label}_{row._meta.model_name}_changelist")
    if "HX-Request" not in request.headers:
        return redirect(target)
    return HttpResponse(status=204, headers={"HX-Redirect": target})


def rows_of(model: type[Model], request: HttpRequest) -> QuerySet[Any]:
    """Returns the rows that the caller sees on the pages of this model, or none without the right to view them."""
    page = admin.site._registry[model]
    return page.get_queryset(request) if page.has_view_permission(request) else model._default_manager.none()
