"""Base classes of the console's pages, which show rows and change them only through services."""

from collections.abc import Callable
from functools import wraps
from typing import Any

from django.contrib import messages
from django.contrib.admin.utils import unquote
from django.db.models import Model
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect
from django.urls import reverse
from unfold.admin import ModelAdmin
from unfold.dataclasses import ActionDialog, UnfoldAction
from unfold.decorators import action
from unfold.enums import ActionVariant
from unfold.forms import BaseDialogForm

from control.core.api.errors import ApiError
from control.operations.console.rendering import page_url


class RowsAdmin(ModelAdmin):  # type: ignore[misc]  # unfold has no types
    """Pages of rows that only services write, so the forms cannot add, edit or delete them.

    The actions, which call services, require the permission to change the rows.
    """

    list_per_page = 50
    show_full_result_count = False

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def has_operate_permission(self, request: HttpRequest, object_id: str | None = None) -> bool:
        return request.user.has_perm(f"{self.opts.app_label}.change_{self.opts.model_name}")

    def get_actions_detail(self, request: HttpRequest, object_id: str) -> list[UnfoldAction]:
        """Returns the actions that are applicable in the row's state. `object_id` is quoted, as in the page's URL."""
        row = self.model.objects.filter(pk=unquote(object_id)).first()
        offered = super().get_actions_detail(request, object_id)
        return [button for button in offered if row is not None and button.method.is_applicable(row)]


class CreatableAdmin(RowsAdmin):
    """Pages with a form that creates a row. The service that `create` calls creates the row from the form's values."""

    def has_add_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm(f"{self.opts.app_label}.add_{self.opts.model_name}")

    def create(self, request: HttpRequest, values: dict[str, Any]) -> Model:
        raise NotImplementedError

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        """Copies the values of the row that the service created to `obj`, which the form has built but not saved."""
        created = self.create(request, form.cleaned_data)
        obj.__dict__.update(created.__dict__)

    def save_related(self, request: HttpRequest, form: Any, formsets: Any, change: bool) -> None:
        """Does nothing, because the service has already written all rows."""


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
        def run(admin: ModelAdmin, request: HttpRequest, form: BaseDialogForm, object_id: str) -> HttpResponse:
            row = get_object_or_404(admin.model, pk=unquote(object_id))
            try:
                messages.success(request, method(admin, row))
            except ApiError as error:
                messages.error(request, error.message)
            return _to_page_of(request, row)

        run.is_applicable = when  # type: ignore[attr-defined]  # `action` copies it to the button's method
        return action(
            run,
            description=title,
            icon=icon,
            permissions=["operate"],
            variant=ActionVariant.DANGER if danger else ActionVariant.PRIMARY,
            dialog=ActionDialog(
                title=f"{title}?", description=description, form_class=BaseDialogForm, form_submit_text=title
            ),
        )

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
