"""Console pages with a form, on which staff or members make a request of the API in the name of an organization."""

from collections.abc import Callable
from typing import Any, ClassVar

from django import forms
from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.template.response import TemplateResponse
from unfold.decorators import action
from unfold.widgets import UnfoldAdminSelectWidget

from control.core.api.errors import ApiError
from control.core.api.forms import ConsoleForm
from control.core.api.requests import parse_request
from control.operations.console.base import RowsAdmin
from control.operations.console.rendering import page_url
from control.operations.console.request_forms import RequestForm
from control.operations.console.visitors import member_of
from control.tenants.accounts.models import Organization
from control.tenants.row_security.scope import as_tenant


class FormAdmin(RowsAdmin):
    """Pages of a table whose rows staff and members create with a form that has the fields of the API's request."""

    create_form: ClassVar[ConsoleForm]

    def has_add_permission(self, request: HttpRequest) -> bool:
        return self.may_write(request, "add")

    def add_view(
        self, request: HttpRequest, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Asks staff for the organization first, because the choices of the other fields depend on it."""
        if not self.has_add_permission(request):
            raise PermissionDenied
        member = member_of(request)
        if member is not None:
            return _form_page(self, request, self.create_form, member.organization, member.organization)
        organization = Organization.objects.filter(pk=request.GET.get("organization", "")).first()
        if organization is not None:
            return _form_page(self, request, self.create_form, organization, organization)
        return _render(self, request, self.create_form.title, _OrganizationForm(), method="get")


def form_action(
    name: str, console_form: ConsoleForm, *, icon: str, when: Callable[[Any], bool], permission: str = "operate"
) -> Any:
    """Returns a button on a row's page that opens a form about the row.

    Args:
        name: the class attribute that holds the button.
        permission: the page's method `has_PERMISSION_permission` decides who may use the form.
    """

    def run(admin: RowsAdmin, request: HttpRequest, object_id: str) -> HttpResponse:
        row = admin.row_to_change(request, object_id)
        organization = row if isinstance(row, Organization) else row.organization
        return _form_page(admin, request, console_form, row, organization)

    run.__name__ = name
    run.is_applicable = when  # type: ignore[attr-defined]  # `action` copies it to the button's method
    return action(run, description=console_form.title, icon=icon, permissions=[permission])


def add_form_action(
    admin: type[RowsAdmin],
    name: str,
    declared: ConsoleForm,
    *,
    icon: str,
    when: Callable[[Any], bool],
    before: str,
) -> None:
    """Adds to a row's page a button that opens a form, in front of the button `before`.

    The form creates an object that belongs to the row.
    """
    setattr(admin, name, form_action(name, declared, icon=icon, when=when))
    admin.actions_detail.insert(admin.actions_detail.index(before), name)


class _OrganizationForm(forms.Form):
    organization = forms.ModelChoiceField(Organization.objects.order_by("name"), widget=UnfoldAdminSelectWidget)


def _form_page(
    admin: RowsAdmin, request: HttpRequest, console_form: ConsoleForm, subject: Any, organization: Organization
) -> HttpResponse:
    submitted = (request.POST, request.FILES) if request.method == "POST" else (None, None)
    form = RequestForm(
        console_form.request,
        *submitted,
        choices=console_form.choices(organization),
        initial=console_form.initial(subject),
    )
    if form.is_valid():
        try:
            with as_tenant(organization.pk, None):
                created = console_form.run(subject, parse_request(console_form.request, form.body()))
        except ApiError as error:
            form.refuse(error.message, error.param or "")
        else:
            messages.success(request, f"{console_form.title}: {created}.")
            return redirect(page_url(created))
    return _render(admin, request, console_form.title, form, method="post", subject=subject, organization=organization)


def _render(admin: RowsAdmin, request: HttpRequest, title: str, form: forms.Form, **context: Any) -> HttpResponse:
    context |= {"is_member": member_of(request) is not None, "title": title, "form": form, "opts": admin.opts}
    return TemplateResponse(request, "console/form.html", {**admin.admin_site.each_context(request), **context})
