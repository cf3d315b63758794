"""Pages on which operators ask for what customers ask the API for, in the name of an organization."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from django import forms
from django.contrib import messages
from django.contrib.admin.utils import unquote
from django.core.exceptions import PermissionDenied
from django.db.models import Model
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect
from django.template.response import TemplateResponse
from rest_framework.exceptions import ValidationError
from unfold.decorators import action
from unfold.widgets import UnfoldAdminSelectWidget

from control.core.api.errors import ApiError, exception_handler
from control.core.api.forms import Choices, ConsoleForm
from control.core.api.requests import parse_request
from control.operations.console.base import RowsAdmin
from control.operations.console.rendering import page_of
from control.operations.console.request_forms import Contract, RequestForm
from control.tenants.accounts.models import Organization
from control.tenants.row_security.scope import as_tenant


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """A `ConsoleForm` whose request is a serializer still, which `run` checks."""

    title: str
    request: Contract
    run: Callable[[Any, dict[str, Any]], Model]  # of an organization, or of the row that is changed, and the body
    choices: Callable[[Organization], Mapping[str, Choices]]  # by the path of the field
    initial: Callable[[Any], Mapping[str, Any]] = lambda subject: {}


class AskingAdmin(RowsAdmin):
    """Rows that are asked for here, as by the API: `add` needs the add permission."""

    asks: ClassVar[ConsoleForm | Ask]

    def has_add_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm(f"{self.opts.app_label}.add_{self.opts.model_name}")

    def add_view(
        self, request: HttpRequest, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """First whose it will be, as the other fields offer what that organization has."""
        if not self.has_add_permission(request):
            raise PermissionDenied
        organization = Organization.objects.filter(pk=request.GET.get("organization", "")).first()
        if organization is not None:
            return _ask(self, request, self.asks, organization, organization)
        return _page(self, request, self.asks.title, _OrganizationForm(), method="get")


def ask_action(name: str, ask: ConsoleForm | Ask, *, icon: str, when: Callable[[Any], bool]) -> Any:
    """A button on a row's page that leads to a form about the row. `name`: of the admin's attribute."""

    def run(admin: RowsAdmin, request: HttpRequest, object_id: str) -> HttpResponse:
        row = get_object_or_404(admin.model, pk=unquote(object_id))
        return _ask(admin, request, ask, row, row.organization)

    run.__name__ = name
    run.is_applicable = when  # type: ignore[attr-defined]  # kept by `wraps` within `action`
    return action(run, description=ask.title, icon=icon, permissions=["operate"])


class _OrganizationForm(forms.Form):
    organization = forms.ModelChoiceField(Organization.objects.order_by("name"), widget=UnfoldAdminSelectWidget)


def _ask(
    admin: RowsAdmin, request: HttpRequest, ask: ConsoleForm | Ask, subject: Any, organization: Organization
) -> HttpResponse:
    sent = (request.POST, request.FILES) if request.method == "POST" else (None, None)
    form = RequestForm(ask.request, *sent, choices=ask.choices(organization), initial=ask.initial(subject))
    if form.is_valid():
        try:
            with as_tenant(organization.pk):
                body = form.body()
                if isinstance(ask, ConsoleForm):
                    made = ask.run(subject, parse_request(ask.request, body))
                else:
                    made = ask.run(subject, body)
        except (ApiError, ValidationError) as error:
            said = exception_handler(error, {}).data["error"]
            form.refuse(said["message"], said["param"] or "")
        else:
            messages.success(request, f"{ask.title}: {made}.")
            return redirect(page_of(made))
    return _page(admin, request, ask.title, form, method="post", subject=subject, organization=organization)


def _page(admin: RowsAdmin, request: HttpRequest, title: str, form: forms.Form, **context: Any) -> HttpResponse:
    context |= {"title": title, "form": form, "opts": admin.opts}
    return TemplateResponse(request, "console/ask.html", {**admin.admin_site.each_context(request), **context})
